"""A cache in processes: forks open their own, a node's processes share one copy, and what is not to be done is said."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from videoserve_cache.tiers import Key, Limits, SharedCache
from videoserve_cache.tiers.device import DeviceTier
from videoserve_cache.tiers.presence import Presence

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_goes_on_with_connections_of_its_own(make_node: MakeNode, make_key: MakeKey) -> None:
    # A file that is about to be told to the index is nobody's: the child compares them at its first beat.
    cache = make_node(grace_s=60.0)
    assert cache.put(make_key("1"), b"before", about={}, cost_s=1.0, cls="E0")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            hit = cache.get(make_key("1"))
            put = cache.put(make_key("2"), b"of the child", about={}, cost_s=1.0, cls="E0")
            status = 0 if hit and bytes(hit.content) == b"before" and put and cache.flush() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hit = cache.get(make_key("2"))
    assert hit is not None
    assert bytes(hit.content) == b"of the child"


def test_processes_of_a_node_share_one_copy(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    one, two = make_node("a"), make_node("a")
    for cache in (one, two):
        cache.put(make_key(), b"latents", about={}, cost_s=1.0, cls="E0")
        assert cache.get(make_key()) is not None
        cache.flush()
    assert len([*(tmp_path / "shm").rglob("??/*")]) == 1
    assert one.stats()["nodes"]["a"]["tiers"]["memory"] == {"bytes": 7, "blobs": 1}


@pytest.mark.parametrize("name", ["", "two words", "a\tb"])
def test_a_name_that_cannot_be(name: str, limits: Limits, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have letters and no spaces"):
        SharedCache.open("redis://127.0.0.1:1", tmp_path, node=name, limits=limits, secret=b"", address=None)


def test_the_device_keeps_what_was_used_last() -> None:
    tier = DeviceTier(10)
    for name in "abc":
        assert tier.put(name, name.upper(), 3)
    assert tier.get("a") == "A"
    assert tier.put("d", "D", 4)
    assert [tier.get(name) for name in "abcd"] == ["A", None, "C", "D"]
    assert tier.bytes == 10
    assert tier.put("a", "other", 1)
    assert not tier.put("e", "E", 11)
    assert (tier.get("a"), tier.bytes) == ("other", 8)
    tier.drop("a")
    tier.drop("a")
    assert (tier.get("a"), tier.bytes) == (None, 7)
    tier.clear()
    assert (tier.get("d"), tier.bytes) == (None, 0)


def test_the_last_process_gives_the_memory_back(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    one, two = make_node("a"), make_node("a")
    one.put(make_key(), b"latents", about={}, cost_s=1.0, cls="E0")
    one.close()
    assert len([*(tmp_path / "shm").rglob("??/*")]) == 1
    hit = two.get(make_key())
    assert hit is not None
    two.close()
    assert [*(tmp_path / "shm").iterdir()] == []
    assert bytes(hit.content) == b"latents"
    again = make_node("a")
    assert again.stats()["nodes"]["a"]["tiers"] == {
        "memory": {"bytes": 0, "blobs": 0}, "disk": {"bytes": 7, "blobs": 1},
    }  # fmt: skip
    hit = again.get(make_key())
    assert hit is not None
    assert (bytes(hit.content), hit.tier) == (b"latents", "disk")


def test_one_comes_while_the_last_one_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    last = Presence(folder)
    assert last.leave()
    entered: list[Presence] = []
    newcomer = threading.Thread(target=lambda: entered.append(Presence(folder)))
    newcomer.start()
    time.sleep(0.1)
    assert entered == []
    last.clear()
    last.close()
    newcomer.join()
    assert [path.name for path in folder.iterdir()] == ["lock"]
    assert entered[0].leave()
    entered[0].close()
