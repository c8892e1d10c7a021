"""What the step cache cannot do is refused with the request, and nothing that it can do is."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve.errors import InvalidField
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import check_costs, plan_video, shape_key
from videoserve.planning.reach import check_budget, check_reach, fewest
from videoserve.types import VideoPlan, VideoRequest
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import executed
from videoserve_cache.steps.schedule import Schedule

COST = {"encode": 0.5, "step": 1.0, "decode": 2.0, "write": 0.5}


@pytest.fixture(scope="module")
def card(demo_model_dir: Path) -> ModelCard:
    return dataclasses.replace(ModelCard.read(demo_model_dir), steps=10, blocks=4)


def planned(card: ModelCard, cache: dict[str, Any]) -> VideoPlan:
    return plan_video(VideoRequest(prompt="pan left", image="0" * 64, cache=cache), card, (128, 128), random_seed=7)


@pytest.mark.parametrize(
    ("cache", "param", "sentence"),
    [
        ({"policy": "mask", "steps": "RR.R"}, "steps", r"The mask RR\.R is for 4 steps; this video takes 10\."),
        (
            {"policy": "mask", "steps": ".RRRRRRRRR"},
            "steps",
            "skips step 1, but the first 2 steps are always computed.",
        ),
        (
            {"policy": "mask", "steps": "R.R.R.R.RR"},
            "steps",
            "skips step 2, but the first 2 steps are always computed; cache.warmup says how many, and is at least 1: 1",
        ),
        (
            {"policy": "mask", "steps": ".R.R.R.R.R", "warmup": 1},
            "steps",
            "skips step 1, but the first step is always computed.",
        ),
        ({"policy": "first_blocks", "threshold": 0.1, "first": 5}, "first", "more blocks than the 4 of this model"),
        ({"policy": "first_blocks", "threshold": 0.1, "first": 2, "last": 3}, "last", "more blocks than the 4 of this"),
        ({"policy": "schedule", "runs": 2}, "runs", r"cache\.runs is 2, but at least 3 steps are always computed\."),
        ({"policy": "schedule", "runs": 9, "max_skips": 0}, "runs", "at least 10 steps are always computed"),
    ],
)
def test_what_cannot_be_is_refused(card: ModelCard, cache: dict[str, Any], param: str, sentence: str) -> None:
    with pytest.raises(InvalidField, match=sentence) as refusal:
        planned(card, cache)
    assert (refusal.value.status, refusal.value.param) == (422, f"cache.{param}")


@pytest.mark.parametrize(
    "cache",
    [
        {"policy": "mask", "steps": "RR.R.R.R.R"},
        {"policy": "mask", "steps": "R.R.R.R.R.", "warmup": 1},
        {"policy": "first_blocks", "threshold": 0.1, "first": 4},
        {"policy": "first_blocks", "threshold": 0.1, "first": 1, "last": 3},
        {"policy": "schedule", "runs": 3},
        {"policy": "schedule", "runs": 99},
        {"time_budget_s": 0.001},
    ],
)
def test_what_can_be_is_planned(card: ModelCard, cache: dict[str, Any]) -> None:
    assert planned(card, cache).cache == parse(cache).to_dict()


def test_a_time_budget_is_held_against_what_was_measured_of_the_same_shape(card: ModelCard) -> None:
    # 3 of 10 steps and 3 seconds besides.
    tight, wide = planned(card, {"time_budget_s": 5.9}), planned(card, {"time_budget_s": 6.0})
    here = {shape_key(tight): COST}
    with pytest.raises(InvalidField, match=r"is 5\.9, but this video takes about 6 s at least, with 3 of its 10 steps"):
        check_costs(tight, here)
    check_costs(wide, here)
    check_costs(planned(card, {"quality": "fast"}), here)
    # Of another shape nothing is known for certain.
    check_costs(tight, {})
    check_costs(tight, {"16x16x5:g1": COST})


def test_the_parameter_of_a_budget_is_named() -> None:
    with pytest.raises(InvalidField) as refusal:
        check_budget({"time_budget_s": 1.0}, 10, COST)
    assert (refusal.value.status, refusal.value.param) == (422, "cache.time_budget_s")


@given(
    steps=st.integers(1, 30),
    warmup=st.integers(1, 4),
    max_skips=st.integers(0, 6),
    boundary=st.integers(0, 30),
    data=st.data(),
)
def test_no_plan_computes_fewer_steps(
    steps: int, warmup: int, max_skips: int, boundary: int, data: st.DataObject
) -> None:
    asked = {"policy": "schedule", "runs": steps, "warmup": warmup, "max_skips": max_skips}
    mask = data.draw(st.text("R.", min_size=steps, max_size=steps))
    sigmas = tuple(1 - step / steps for step in range(steps + 1))
    experts = tuple(int(step >= boundary) for step in range(steps))
    schedule = Schedule(sigmas=sigmas, experts=experts, guided=(True,) * steps)
    letters = executed(Mask(steps=mask, guards=Guards(warmup=warmup, max_skips=max_skips)), schedule)
    assert letters is not None
    assert letters.count("R") >= fewest(parse(asked), steps)


@given(steps=st.integers(1, 30), warmup=st.integers(1, 4), data=st.data())
def test_a_mask_that_is_taken_has_its_first_steps_as_they_are(steps: int, warmup: int, data: st.DataObject) -> None:
    mask = data.draw(st.text("R.", min_size=steps, max_size=steps))
    asked = {"policy": "mask", "steps": mask, "warmup": warmup, "max_skips": 30}
    try:
        check_reach(asked, steps, 4)
    except InvalidField:
        assert "." in mask[:warmup]
        return
    letters = executed(
        Mask(steps=mask, guards=Guards(warmup=warmup, max_skips=30)),
        Schedule.plain(tuple(1 - step / steps for step in range(steps + 1))),
    )
    assert letters == mask[:-1] + "R"
