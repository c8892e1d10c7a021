"""Adapters of a request as a plan has them."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from videoserve.errors import InvalidField
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import plan_video
from videoserve.types import AdapterUse, LoraAsk, VideoPlan, VideoRequest

A, B = "a" * 64, "b" * 64


@pytest.fixture(scope="module")
def card(demo_model_dir: Path) -> ModelCard:
    return ModelCard.read(demo_model_dir)


@pytest.fixture(scope="module")
def two_experts(card: ModelCard) -> ModelCard:
    return dataclasses.replace(
        card, name="pair", layout="wan22-a14b", experts=2, boundary_ratio=0.9, last_image="optional", sizes=()
    )


def ask(digest: str = A, parts: tuple[str, ...] = ("any",), **fields: Any) -> LoraAsk:
    return LoraAsk(**{"name": f"n{digest[0]}", "digest": digest, "parts": parts} | fields)


def planned(card: ModelCard, *loras: LoraAsk, **fields: Any) -> VideoPlan:
    request = VideoRequest(**{"prompt": "pan left", "image": "0" * 64, "seed": 1, "loras": loras} | fields)
    assert VideoRequest.from_dict(request.to_dict()) == request
    plan = plan_video(request, card, (256, 256), random_seed=77)
    assert VideoPlan.from_dict(plan.to_dict()) == plan
    return plan


def test_the_order_of_a_request_changes_nothing(card: ModelCard) -> None:
    one, other = planned(card, ask(B), ask(A, scale=0.5)), planned(card, ask(A, scale=0.5), ask(B))
    assert one == other
    assert one.loras == (AdapterUse(digest=A, weight=0.5), AdapterUse(digest=B, weight=1.0))


def test_one_adapter_twice_is_one_with_the_scales_added(card: ModelCard) -> None:
    plan = planned(card, ask(name="x", scale=0.5), ask(name="y", scale=0.25))
    assert plan.loras == (AdapterUse(digest=A, weight=0.75),)
    assert plan.adjustments == ("x and y are one adapter: their scales are added up to 0.75.",)


def test_the_sum_of_one_adapters_scales_has_their_range(card: ModelCard) -> None:
    with pytest.raises(InvalidField, match="the scale of x and y is 5; it is a number from -4 to 4"):
        planned(card, ask(name="x", scale=4.0), ask(name="y", scale=1.0))
    plan = planned(card, ask(name="x", scale=4.0), ask(name="y", scale=-1.0))
    assert plan.loras == (AdapterUse(digest=A, weight=3.0),)


def test_scale_0_is_as_if_it_were_not_there(card: ModelCard) -> None:
    plan, none = planned(card, ask(scale=0.0)), planned(card)
    assert plan.loras == ()
    assert plan.batch_key == none.batch_key
    assert "left out" in plan.adjustments[0]


@pytest.mark.parametrize("scale", [4.5, -5.0, math.nan, math.inf])
def test_a_scale_out_of_range(card: ModelCard, scale: float) -> None:
    with pytest.raises(InvalidField, match="it is a number from -4 to 4"):
        planned(card, ask(scale=scale))


def test_jobs_share_a_forward_with_the_same_adapters_only(card: ModelCard) -> None:
    keys = {
        planned(card, *loras).batch_key for loras in ([], [ask()], [ask(scale=0.5)], [ask(), ask(B)], [ask(scale=-1.0)])
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    ("asked", "uses"),
    [
        ([ask()], [("all", 1.0)]),
        ([ask(parts=("high", "low"))], [("all", 1.0)]),
        ([ask(parts=("high",))], [("high", 1.0)]),
        ([ask(target="low")], [("low", 1.0)]),
        ([ask(target="high"), ask(target="low")], [("all", 1.0)]),
        ([ask(), ask(target="high", scale=0.5)], [("high", 1.5), ("low", 1.0)]),
        ([ask(), ask(target="high", scale=-1.0)], [("low", 1.0)]),
    ],
)
def test_experts_are_those_that_really_change(
    two_experts: ModelCard, asked: list[LoraAsk], uses: list[tuple[str, float]]
) -> None:
    assert [(use.target, use.weight) for use in planned(two_experts, *asked).loras] == uses


def test_a_target_where_nothing_changes(card: ModelCard, two_experts: ModelCard) -> None:
    with pytest.raises(InvalidField, match="is for the high expert, so that target 'low' changes nothing"):
        planned(two_experts, ask(parts=("high",), target="low"))
    with pytest.raises(InvalidField, match="target 'high' is for models with two experts; demo has one"):
        planned(card, ask(target="high"))


def test_no_step_is_skipped_beside_an_adapter_of_few_steps(card: ModelCard) -> None:
    mask = {"policy": "mask", "steps": "RR.R"}
    plan = planned(card, ask(steps=4), num_inference_steps=4, cache=mask | {"reuse": False})
    assert plan.cache == {"quality": "exact", "reuse": False}
    assert "The step cache is off: the adapter na is made for 4 steps" in plan.adjustments[-1]
    assert planned(card, ask(steps=50), num_inference_steps=4, cache=mask).cache != {"quality": "exact"}
    with pytest.raises(InvalidField, match="refused"):
        planned(card, ask(steps=4), num_inference_steps=4, cache=mask, strict=True)


def test_plans_of_before_there_were_adapters(card: ModelCard) -> None:
    told = planned(card).to_dict()
    del told["loras"]
    assert VideoPlan.from_dict(told).loras == ()
