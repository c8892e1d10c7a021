"""A job that was interrupted ends in the same bytes as one that was not, wherever it was."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from videoserve.types import Event
from videoserve.video.engine import VideoEngine

RunAll = Callable[[VideoEngine], list[Event]]
STEPS = 4
REQUEST: dict[str, Any] = {"num_inference_steps": STEPS, "num_frames": 9, "guidance_scale": 2.5}
# The units of a job's work: one encode, the steps, two pieces of nine frames decoded; the write ends it.
UNITS = 1 + STEPS + 2


def interrupted(engine: VideoEngine, job: Any, units: int) -> list[Event]:
    """What a job told in its first units of work, before its process died."""
    events: list[Event] = []
    engine.admit(job, None)
    for _ in range(units):
        engine.step(events.append)
    return events


@pytest.mark.parametrize("solver", ["unipc", "euler"])
@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_a_killed_job_goes_on_bit_for_bit(
    studio: Callable[..., Any], run_all: RunAll, layout: str, solver: str
) -> None:
    place = studio(layout, solver)
    job = place.job(**REQUEST)
    whole = place.solo(job)
    for units in range(UNITS + 1):
        dying = place.shared(checkpoint_steps=1)
        kept = [event.data for event in interrupted(dying, job, units) if event.kind == "checkpoint"]
        survivor = place.shared()
        assert survivor is not dying
        survivor.admit(job, kept[-1] if kept else None)
        events = run_all(survivor)
        assert place.result(events) == whole
        receipt = events[-1].data["receipt"]
        steps = min(max(units - 1, 0), STEPS)
        assert receipt["steps"] == "R" * STEPS
        assert receipt["resumed_from"] == ([steps] if steps else [])
        told = [event.data["step"] for event in events if event.kind == "progress"]
        assert told[0] == (steps + 1 if 0 < steps < STEPS else steps)


def test_a_new_process_goes_on_bit_for_bit(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job(**REQUEST)
    whole = tiny_studio.solo(job)
    dying = tiny_studio.engine(checkpoint_steps=2)
    (kept,) = [event.data for event in interrupted(dying, job, 4) if event.kind == "checkpoint"]
    dying.close()
    survivor = tiny_studio.engine()
    survivor.admit(job, kept)
    assert tiny_studio.result(run_all(survivor)) == whole


@pytest.mark.parametrize("units", range(UNITS + 1))
def test_a_suspended_job_goes_on_bit_for_bit(tiny_studio: Any, run_all: RunAll, units: int) -> None:
    job = tiny_studio.job(**REQUEST)
    engine = tiny_studio.shared()
    interrupted(engine, job, units)
    kept = engine.suspend(job.id)
    assert engine.bytes_held() == 0
    assert (kept is None) == (units == 0)
    if kept is not None:
        assert kept["step"] == min(units - 1, STEPS)
        assert kept["stage"] == ("denoise" if kept["step"] < STEPS else "decode")
    engine.admit(job, kept)
    assert tiny_studio.result(run_all(engine)) == tiny_studio.solo(job)


def test_interrupted_twice(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job(**REQUEST)
    engine = tiny_studio.shared()
    interrupted(engine, job, 2)
    engine.admit(job, engine.suspend(job.id))
    engine.step(lambda event: None)
    engine.admit(job, engine.suspend(job.id))
    events = run_all(engine)
    assert tiny_studio.result(events) == tiny_studio.solo(job)
    receipt = events[-1].data["receipt"]
    assert receipt["resumed_from"] == [1, 2]
    assert receipt["prompt"]["tokens"] == 9


def test_suspending_a_job_that_is_not_here(tiny_studio: Any) -> None:
    assert tiny_studio.shared().suspend("nobody") is None


@pytest.mark.parametrize("fault", ["gone", "changed", "other job", "other plan", "not one"])
def test_an_unusable_checkpoint_starts_the_job_over(
    tiny_studio: Any, run_all: RunAll, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    job = tiny_studio.job(**REQUEST)
    whole = tiny_studio.solo(job)
    engine = tiny_studio.shared()
    asked = {"other job": tiny_studio.job("other", **REQUEST), "other plan": tiny_studio.job(**REQUEST, seed=1)}
    interrupted(engine, asked.get(fault, job), 3)
    kept = engine.suspend(asked.get(fault, job).id)
    path: Path = tiny_studio.files.path(kept["sha256"])
    if fault == "gone":
        tiny_studio.files.delete(kept["sha256"])
    if fault == "changed":
        blob = bytearray(path.read_bytes())
        blob[-1] ^= 1
        path.unlink()
        path.write_bytes(blob)
    if fault == "not one":
        kept["sha256"] = tiny_studio.files.put(b"\x00" * 50)
    engine.admit(job, kept)
    assert "starts over" in caplog.text
    events = run_all(engine)
    assert tiny_studio.result(events) == whole
    assert events[-1].data["receipt"]["resumed_from"] == []
    assert events[0].data == {"stage": "encode"}


def test_another_model_does_not_go_on_with_it(
    studio: Callable[..., Any], tiny_studio: Any, run_all: RunAll, caplog: pytest.LogCaptureFixture
) -> None:
    job = tiny_studio.job(**REQUEST)
    first = tiny_studio.shared()
    interrupted(first, job, 3)
    kept = first.suspend(job.id)
    assert kept is not None
    other = studio("wan22-ti2v", "euler")
    shutil.copytree(tiny_studio.files.root, other.files.root, dirs_exist_ok=True)
    engine = other.shared()
    engine.admit(job, kept)
    assert "starts over" in caplog.text
    assert other.result(run_all(engine)) == other.solo(job)


def test_half_precision_goes_on_bit_for_bit(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job(**REQUEST)
    engine = tiny_studio.shared(dtype="bfloat16")
    engine.admit(job, None)
    whole = tiny_studio.result(run_all(engine))
    interrupted(engine, job, 3)
    kept = engine.suspend(job.id)
    engine.admit(job, kept)
    assert tiny_studio.result(run_all(engine)) == whole
    assert whole != tiny_studio.solo(job)
    full = tiny_studio.shared()
    full.admit(job, kept)
    assert run_all(full)[-1].data["receipt"]["resumed_from"] == []
