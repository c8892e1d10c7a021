"""Traces of the cache: what they tell and what they must not, and replaying them under other policies."""

import json
import multiprocessing
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve_cache.index.key import Key
from videoserve_cache.trace.file import read
from videoserve_cache.trace.line import Line, blurred
from videoserve_cache.trace.recorder import Recorder

DIGESTS = ["a" * 64, "b" * 64]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traces" / "cache.jsonl"


class Told(Recorder):
    """What a cache would tell it, in short."""

    def record(self, what: str, kind: str, digest: str, tier: str = "", size: int = 0, cost_s: float = 0.0) -> None:
        self.on_event(what, Key(kind=kind, digest=digest, tenant="ana", model="m"), tier, size, cost_s)


def recorder(path: Path, limit: int = 10**6) -> Told:
    return Told(path, limit=limit)


def test_a_trace_tells_what_happened_to_entries(path: Path) -> None:
    trace = recorder(path)
    trace.record("miss", "img_cond", DIGESTS[0])
    trace.record("put", "img_cond", DIGESTS[0], size=1_000_000, cost_s=1.23456)
    trace.record("hit", "img_cond", DIGESTS[0], tier="memory", size=1_000_000, cost_s=1.23456)
    trace.record("hit", "result", DIGESTS[0], tier="disk", size=40, cost_s=2)
    trace.on_event("evict", None, "disk", 0, 0.0)
    trace.record("promote", "result", DIGESTS[0], tier="memory")
    lines = list(read(path))
    assert [(line.what, line.kind, line.tier) for line in lines] == [
        ("miss", "img_cond", ""),
        ("put", "img_cond", ""),
        ("hit", "img_cond", "memory"),
        ("hit", "result", "disk"),
    ]
    assert len({line.entry for line in lines[:3]}) == 1
    # The same digest in another kind is another entry.
    assert lines[3].entry != lines[0].entry
    assert (lines[1].size, lines[1].cost_s) == (pytest.approx(1_000_000, rel=1 / 64), 1.23)
    assert all(0 <= line.at < 60 for line in lines)


def test_entries_cannot_be_recognised_nor_joined_with_another_trace(path: Path, tmp_path: Path) -> None:
    files = [path, tmp_path / "other.jsonl", tmp_path / "again.jsonl"]
    for file in files:
        recorder(file).record("put", "result", DIGESTS[0], size=12_345, cost_s=1)
    # A new trace where an old one was moved away has its secret still, and nothing in common with it.
    shutil.move(files[2], tmp_path / "old.jsonl")
    recorder(files[2]).record("put", "result", DIGESTS[0], size=12_345, cost_s=1)
    files.append(tmp_path / "old.jsonl")
    assert stat.S_IMODE(path.with_suffix(".key").stat().st_mode) == 0o600
    assert len({next(iter(read(file))).entry for file in files}) == 4
    for file in files:
        text = file.read_text()
        assert DIGESTS[0][:8] not in text
        assert "12345" not in text
        assert set(json.loads(text.splitlines()[1])) == {"at", "what", "kind", "entry", "size", "cost_s"}
    began = [json.loads(file.read_text().splitlines()[0])["began"] for file in files]
    assert min(abs(one - other) for one in began for other in began if one is not other) > 60


def record_many(path: Path, kind: str) -> None:
    trace = recorder(path)
    for number in range(500):
        trace.record("put", kind, DIGESTS[0], size=number + 1, cost_s=1)


def test_processes_record_into_one_file(path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    processes = [spawn.Process(target=record_many, args=(path, kind)) for kind in ("result", "boundary")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = list(read(path))
    assert sum(line.kind == "result" for line in lines) == sum(line.kind == "boundary" for line in lines) == 500
    assert len({(line.kind, line.entry) for line in lines}) == 2


def test_a_trace_grows_to_its_limit_only(path: Path) -> None:
    trace = recorder(path, limit=2000)
    for _ in range(100):
        trace.record("miss", "result", DIGESTS[0])
    assert 1800 < path.stat().st_size <= 2000
    assert path.read_text().endswith("\n")
    recorder(path, limit=2000).record("miss", "result", DIGESTS[0])
    assert path.stat().st_size <= 2000


def test_a_full_disk_ends_the_recording_only(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    trace = recorder(path)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("videoserve_cache.trace.recorder.os.write", full)
        trace.record("miss", "result", DIGESTS[0])
    trace.record("miss", "result", DIGESTS[0])
    assert list(read(path)) == []


def test_what_is_no_trace_is_told_by_its_line(path: Path, tmp_path: Path) -> None:
    trace = recorder(path)
    trace.record("miss", "result", DIGESTS[0])
    with path.open("a") as file:
        file.write('{"at": 1, "what": "stolen", "kind": "result", "entry": "00"}\n')
    with pytest.raises(ValueError, match=r"Line 3 of .* has what 'stolen'; it must be one of hit, miss, put"):
        list(read(path))
    (tmp_path / "video.mp4").write_bytes(b"\x00\xff\xfe\n")
    for other in (tmp_path / "video.mp4", tmp_path / "nothing"):
        with pytest.raises(ValueError, match=str(other)):
            list(read(other))
    (tmp_path / "list.json").write_text("[]\n")
    with pytest.raises(ValueError, match="is not a videoserve cache trace"):
        recorder(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("7", "is not an object"),
        ('{"what": "hit"}', "is not an object"),
        ('{"at": "soon", "what": "hit", "kind": "result", "entry": "00"}', "must be numbers from 0"),
        ('{"at": 1, "what": "put", "kind": "result", "entry": "00", "size": -1}', "must be numbers from 0"),
        ('{"at": 1, "what": "put", "kind": 3, "entry": "00"}', "that is no text"),
    ],
)
def test_lines_that_are_none(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Line.from_json(text)


def test_a_line_that_was_cut_is_left_out(path: Path) -> None:
    trace = recorder(path)
    trace.record("miss", "result", DIGESTS[0])
    trace.record("miss", "result", DIGESTS[1])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    assert len(list(read(path))) == 1


@given(st.integers(0, 2**45))
def test_sizes_are_blurred_a_little(size: int) -> None:
    assert abs(blurred(size) - size) <= size / 64
    assert blurred(blurred(size)) == blurred(size)
