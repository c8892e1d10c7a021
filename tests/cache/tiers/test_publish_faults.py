"""Processes killed while they publish or lead, and disks that are full: a right hit or a miss, and nothing left."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from videoserve_cache.index.index import Index
from videoserve_cache.tiers import Away, Key, Limits, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]
Run = Callable[[str], int]

# A process of node a that does one thing. What dies is put in front of it.
OPEN = """
import os, resource, signal, sys
from pathlib import Path
from videoserve_cache.index.index import Index
from videoserve_cache.tiers import Key, Limits, SharedCache, blobs
from videoserve_cache.tiers.blobs import Blobs

def die(*ignored, **too):
    os.kill(os.getpid(), signal.SIGKILL)

def then_die(function):
    def called(*told, **too):
        function(*told, **too)
        die()
    return called

url, folder, shm = sys.argv[1:]
limits = Limits(
    memory_bytes=1 << 20, disk_bytes=1 << 20, shared_memory=Path(shm), patience_s=2.0, beat_s=3600.0
)
cache = SharedCache.open(url, Path(folder), node="a", limits=limits, secret=b"secret", address=None)
key = Key(kind="final_latent", digest="1".rjust(64, "0"), tenant="t", model="m")
"""
PUT = """
sys.exit(0 if cache.put(key, bytes(range(250)) * 400, about={}, cost_s=1.0, cls="E0") else 3)
"""
CONTENT = bytes(range(250)) * 400

# Each point of publishing: memory's file, disk's file, the commit.
POINTS = {
    "before the first file": "Blobs.write = die",
    "in the middle of a file": "os.fsync = die",
    "after memory's file has its name": "Path.rename = then_die(Path.rename)",
    "after both files have theirs": "blobs._sync_folder = then_die(blobs._sync_folder)",
    "before the commit": "Index.commit = die",
    "after the commit": "Index.commit = then_die(Index.commit)",
}


@pytest.fixture
def run(redis_url: str, tmp_path: Path, limits: Limits) -> Run:
    """run(code) -> exit status of a process of node a that runs it."""

    def process(code: str) -> int:
        told = [redis_url, str(tmp_path / "a"), str(limits.shared_memory)]
        return subprocess.run([sys.executable, "-c", OPEN + code, *told], timeout=60, check=False).returncode

    return process


def blobs(tmp_path: Path) -> list[Path]:
    """Blobs of node a, and what was to become one."""
    there = [path for tier in ("shm", "a/blobs") for path in (tmp_path / tier).rglob("*") if path.is_file()]
    return [path for path in there if path.name != "lock"]


@pytest.mark.parametrize("point", POINTS)
def test_a_publisher_is_killed(point: str, run: Run, make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    assert run(POINTS[point] + "\n" + PUT) == -signal.SIGKILL
    # Files that another process may be about to publish are left alone.
    patient = make_node("a", grace_s=60.0)
    before = len(blobs(tmp_path))
    patient.flush()
    assert len(blobs(tmp_path)) == before
    hit = patient.get(make_key())
    assert (None if hit is None else bytes(hit.content)) == (CONTENT if point == "after the commit" else None)
    patient.close()
    make_node("a", grace_s=0.0).close()
    # The last process of the node has given its memory back.
    assert len(blobs(tmp_path)) == (1 if point == "after the commit" else 0)
    again = make_node("a")
    assert again.put(make_key(), CONTENT, about={}, cost_s=1.0, cls="E0")
    hit = again.get(make_key())
    assert hit is not None
    assert bytes(hit.content) == CONTENT


def test_the_points_are_all_there_are(run: Run, make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    # Else a point that is never reached would pass for one that is survived.
    assert run(PUT) == 0
    assert len(blobs(tmp_path)) == 2


def test_an_answer_that_is_lost_leaves_one_entry(
    make_node: MakeNode, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache, commit = make_node("a"), Index.commit

    def lost(*told: Any) -> None:
        commit(*told)
        raise Away("The connection died before the answer came.")

    with monkeypatch.context() as patch:
        patch.setattr(Index, "commit", lost)
        assert not cache.put(make_key(), CONTENT, about={}, cost_s=1.0, cls="E0")
    for _ in range(2):
        hit = cache.get(make_key())
        assert hit is not None
        assert bytes(hit.content) == CONTENT
        # Committed once more, which changes nothing.
        assert cache.flush()
    stats = cache.stats()
    assert stats["entries"]["final_latent"] == 1
    assert stats["nodes"]["a"]["tiers"]["disk"] == {"bytes": len(CONTENT), "blobs": 1}
    assert "conflicts" not in stats["counts"]
    assert len(blobs(tmp_path)) == 2


def test_a_full_disk(run: Run, make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    full = "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
    assert run(full + PUT) == 3
    assert blobs(tmp_path) == []
    assert make_node("a").get(make_key()) is None


def test_one_tier_that_is_full_is_no_harm(
    make_node: MakeNode, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_node("a")

    def full(*ignored: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache._here.node.tiers["disk"], "write", full)
    assert cache.put(make_key(), CONTENT, about={}, cost_s=1.0, cls="E0")
    hit = cache.get(make_key())
    assert hit is not None
    assert (hit.tier, bytes(hit.content)) == ("memory", CONTENT)
    cache.flush()
    assert cache.stats()["counts"]["full:disk"] == 1
    assert cache.stats()["nodes"]["a"]["tiers"]["disk"]["bytes"] == 0
