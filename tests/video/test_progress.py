"""Costs, progress and the time that is left, before and after something has been measured."""

from collections.abc import Callable
from typing import Any

import pytest

from videoserve.types import Event, VideoPlan
from videoserve.video.engine import VideoEngine
from videoserve.video.progress import Costs


def filled(key: str, seconds: float) -> Costs:
    costs = Costs()
    for stage in ("encode", "step", "decode", "write"):
        costs.record(key, stage, seconds)
    return costs


def test_the_newest_measurement_counts_most_but_not_alone() -> None:
    costs = filled("48x32x5:g1", 1.0)
    costs.record("48x32x5:g1", "step", 2.0)
    assert costs.to_dict()["48x32x5:g1"]["step"] == pytest.approx(1.3)


def test_other_shapes_are_in_proportion(tiny_studio: Any) -> None:
    plan = VideoPlan.from_dict(tiny_studio.job(num_frames=9).plan)
    assert Costs().of(plan) is None
    costs = filled("48x32x5:g0", 1.0)
    assert costs.exact(plan) is None
    scaled = costs.of(plan)
    assert scaled is not None
    assert scaled["step"] == pytest.approx(9 / 5 * 2)
    # Only steps have two branches.
    assert [scaled[stage] for stage in ("encode", "decode", "write")] == pytest.approx([9 / 5] * 3)


def test_the_nearest_shape_is_the_one_of_the_nearest_ratio(tiny_studio: Any) -> None:
    """A tiny video measures what every video costs besides its pixels: a larger one must not be scaled up from it."""
    plan = VideoPlan.from_dict(tiny_studio.job(num_frames=9).plan)
    costs = filled("160x96x9:g1", 10.0)
    for stage in ("encode", "step", "decode", "write"):
        costs.record("16x16x1:g0", stage, 1.0)
    scaled = costs.of(plan)
    assert scaled is not None
    assert scaled["step"] == pytest.approx(10 * 48 * 32 / (160 * 96))


def test_a_shape_counts_when_all_of_it_is_measured() -> None:
    costs = Costs()
    costs.record("48x32x5:g1", "step", 1.0)
    assert costs.to_dict() == {}


def test_an_engine_that_was_not_warmed_up(tiny_studio: Any, run_all: Callable[[VideoEngine], list[Event]]) -> None:
    engine = VideoEngine(tiny_studio.shared()._settings, tiny_studio.files, tiny_studio.directory)
    engine.load(warm=False)
    assert engine.costs() == {}
    job = tiny_studio.job(num_inference_steps=4)
    engine.admit(job, None)
    events = run_all(engine)
    told = [event.data for event in events if event.kind == "progress"]
    assert [data["progress"] for data in told] == [5, 16, 27, 38, 50, 94, 100]
    assert told[0]["eta_s"] is None
    assert all(data["eta_s"] > 0 for data in told[1:-1])
    assert tiny_studio.result(events) == tiny_studio.solo(job)
    assert set(engine.costs()) == {"48x32x5:g1"}
