"""`videoserve cache` on traces."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.commands.sizes import parse_bytes, shown_bytes
from videoserve_cache.index.key import Key
from videoserve_cache.trace.recorder import Recorder


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["cache", *map(str, words)], env={"COLUMNS": "200"})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A dear entry, two cheap ones of the same size, and the dear one again."""
    path = tmp_path / "trace.jsonl"
    recorder = Recorder(path, limit=10**6)
    keys = {name: Key(kind="result", digest=name, tenant="ana", model="m") for name in ("dear", "cheap", "other", "no")}
    for name, cost_s in (("dear", 90.0), ("cheap", 1.0), ("other", 1.0)):
        recorder.on_event("miss", keys[name], "", 0, 0.0)
        recorder.on_event("put", keys[name], "disk", 1024, cost_s)
    recorder.on_event("hit", keys["dear"], "disk", 1024, 90.0)
    recorder.on_event("miss", keys["no"], "", 0, 0.0)
    recorder.close()
    return path


def test_a_recorded_trace_is_replayed(trace: Path) -> None:
    result = run("replay", trace, "--capacity", "2KiB", "--capacity", "1MB", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["unvalued"] == 1
    small, large = answer["capacities"]
    assert (small["capacity"], large["capacity"]) == (2048, 1_000_000)
    assert small["policies"]["gdsf"]["total"] == {
        "asked": 4,
        "hits": 1,
        "asked_s": 182.0,
        "saved_s": 90.0,
        "hit_bytes": 1024,
    }
    assert small["policies"]["lru"]["total"]["hits"] == 0
    assert large["policies"]["lru"]["saved_share"] == large["policies"]["gdsf"]["saved_share"] == 90 / 182
    assert small["most_saved_s"] == large["most_saved_s"] == 90.0
    table = run("replay", trace, "--capacity", "2KiB", "--policy", "fifo").stdout
    assert [line.split()[:2] for line in table.splitlines()[1:3]] == [["2.0", "KB"], ["bound", "90"]]
    assert "fifo" in table
    assert "1 look-ups are left out" in table


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "The trace nowhere cannot be read: No such file or directory."),
        (("synthetic", "--capacity", "16 gallons"), "--capacity is '16 gallons'; it must be a number of bytes"),
        (("synthetic", "--capacity", "0GB"), "--capacity is '0GB'"),
        (("synthetic", "--policy", "belady"), "There is no policy 'belady'; policies are gdsf, lru, lfu, fifo."),
    ],
)
def test_what_cannot_be_replayed_is_a_wrong_call(words: tuple[str, ...], sentence: str) -> None:
    result = run("replay", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_a_trace_without_look_ups(tmp_path: Path) -> None:
    Recorder(tmp_path / "t", limit=10**6).close()
    result = run("replay", tmp_path / "t")
    assert result.exit_code == 2
    assert "nothing was asked for" in result.stderr


def test_bytes_as_people_write_them() -> None:
    told = {"4096": 4096, "16GB": 16 * 10**9, "1.5 GiB": 3 * 2**29, "500mib": 500 * 2**20, "2TB": 2 * 10**12, "7B": 7}
    assert {text: parse_bytes("--capacity", text) for text in told} == told
    for text in ("", "GB", "-1GB", "1e9", "1PB", "1 G B", "0.0001B"):
        with pytest.raises(ValueError, match="must be a number of bytes"):
            parse_bytes("--capacity", text)
    shown = {0: "0 B", 999: "999 B", 1000: "1.0 KB", 16 * 10**9: "16.0 GB", 25 * 10**11: "2.5 TB"}
    assert {size: shown_bytes(size) for size in shown} == shown
