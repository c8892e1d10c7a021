"""Policies chosen by what was measured: of whom, by whom, and what happens before there is anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from videoserve.types import Event
from videoserve.video.calibrate import SAMPLES, Calibrations, Seconds
from videoserve.video.engine import VideoEngine
from videoserve_cache.steps.calibration import Sample, Subject
from videoserve_cache.steps.curve import Curves
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.schedule import Schedule

RunAll = Callable[[VideoEngine], list[Event]]
STEPS = 6
FIELDS: dict[str, Any] = {"num_inference_steps": STEPS}
RUNS = {"policy": "schedule", "runs": STEPS - 1}
SUBJECT = Subject(model="m", adapters=(), solver="s", steps=3, size=(5, 32, 48), dtype="float32", guidance=(1.0,))
SCHEDULE = Schedule.plain((1.0, 0.6, 0.3, 0.0))
SECONDS = Seconds(run_s=1.0, skip_s=0.0, fixed_s=1.0)


def sample(seed: int) -> Sample:
    rows = np.random.default_rng(seed).normal(size=(3, 8))
    return Sample(output=rows @ rows.T, residual=rows @ rows.T)


def told(engine: VideoEngine, run_all: RunAll, job: Any) -> tuple[dict[str, Any], list[str]]:
    """What a job ended with, and what was adjusted."""
    engine.admit(job, None)
    events = run_all(engine)
    return events[-1].data, [event.data["sentence"] for event in events if event.kind == "adjusted"]


def test_the_first_ones_are_computed_and_measured_for_the_next(
    studio: Callable[..., Any], run_all: RunAll, tmp_path: Path
) -> None:
    place = studio("wan22-a14b")
    engine = place.engine(data=tmp_path)
    exact, _ = told(engine, run_all, place.job(seed=0, **FIELDS))
    # The same video twice tells nothing new.
    for seed, known in ((0, "are 0"), (1, "is one"), (1, "are 2"), *((n, f"are {n}") for n in range(2, SAMPLES))):
        data, (sentence,) = told(engine, run_all, place.job(seed=seed, cache=RUNS, **FIELDS))
        assert data["receipt"]["steps"] == "R" * STEPS
        assert sentence.endswith(
            f"made of {SAMPLES} uncached videos like this one; there {known}, so every step is computed."
        )
        if seed == 0:
            assert data["outputs"] == exact["outputs"]
    data, adjusted = told(engine, run_all, place.job(seed=9, cache=RUNS, **FIELDS))
    cache = data["receipt"]["cache"]
    assert adjusted == []
    assert (cache["policy"], cache["steps"].count("."), cache["steps"]) == ("schedule", 1, cache["planned"])
    assert cache["calibration"]
    assert set(cache["foretold"]) == {"seconds", "mean_db", "worst_db"}
    # Another process finds it, and other guidance, steps or frames have none.
    other = place.engine(data=tmp_path)
    assert told(other, run_all, place.job(seed=9, cache=RUNS, **FIELDS))[0]["outputs"] == data["outputs"]
    for fields in ({"guidance_scale": 3.0}, {"num_inference_steps": STEPS + 1}, {"num_frames": 9}, {"flow_shift": 5.0}):
        _, (sentence,) = told(other, run_all, place.job(cache=RUNS, **(FIELDS | fields)))
        assert "there are 0, so every step is computed" in sentence
    late, _ = told(other, run_all, place.job(cache={"time_budget_s": 1e-6}, **FIELDS))
    assert late["code"] == "invalid_value"
    assert "takes" in late["message"]
    roomy, _ = told(other, run_all, place.job(seed=0, cache={"time_budget_s": 1e6}, **FIELDS))
    assert roomy["outputs"] == exact["outputs"]


def test_a_strict_request_is_refused_without_one(tiny_studio: Any, run_all: RunAll, tmp_path: Path) -> None:
    engine = tiny_studio.engine(data=tmp_path)
    data, adjusted = told(engine, run_all, tiny_studio.job(cache={"quality": "high"}, strict=True, size=None, **FIELDS))
    assert (data["code"], adjusted) == ("invalid_value", [])
    assert "cache.quality high needs a calibration" in data["message"]


def test_one_that_was_touched_is_none(tmp_path: Path) -> None:
    calibrations = Calibrations(tmp_path)
    for seed in range(SAMPLES):
        assert calibrations.add(SUBJECT, SCHEDULE, sample(seed), SECONDS) == seed + 1
    assert calibrations.add(SUBJECT, SCHEDULE, sample(0), SECONDS) == SAMPLES
    assert calibrations.curves(SUBJECT, SCHEDULE) is not None
    (file,) = (tmp_path / "calibrations").glob("*.json")
    whole = file.read_text()
    content = json.loads(whole)
    content["measured"]["run_s"] = 0.5
    for text in (json.dumps(content), whole[:-9], ""):
        file.write_text(text)
        assert calibrations.get(SUBJECT, SCHEDULE) is None
    file.write_text(whole)
    assert calibrations.count(SUBJECT, SCHEDULE) == SAMPLES
    # What another server has sealed is not believed.
    (tmp_path / "calibration.key").write_bytes(b"x" * 32)
    assert calibrations.curves(SUBJECT, SCHEDULE) is None
    other = Schedule.plain((1.0, 0.5, 0.3, 0.0))
    assert Calibrations(tmp_path).count(SUBJECT, other) == 0


def test_the_key_is_kept_and_nobody_elses_to_read(tmp_path: Path) -> None:
    Calibrations(tmp_path).add(SUBJECT, SCHEDULE, sample(1), SECONDS)
    key = tmp_path / "calibration.key"
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    before = key.read_bytes()
    assert Calibrations(tmp_path).add(SUBJECT, SCHEDULE, sample(2), SECONDS) == 2
    assert key.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calibration.key", "calibrations"]


def test_curves_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Calibrations(tmp_path)
    for seed in range(SAMPLES):
        first.add(SUBJECT, SCHEDULE, sample(seed), SECONDS)
    guards = Guards(warmup=1)
    made = first.curves(SUBJECT, SCHEDULE)
    assert made is not None
    points = made.of(guards)
    monkeypatch.setattr(Curves, "of", None)
    kept = Calibrations(tmp_path).curves(SUBJECT, SCHEDULE)
    assert kept is not None
    assert kept.of(guards) == points
