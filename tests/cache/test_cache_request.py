"""The field `cache` of a request, and the policies that targets become."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.toy_denoiser import begin, even, measured, noise, smooth
from videoserve_cache.steps.context import StepCtx
from videoserve_cache.steps.curve import Curves
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.mask import Mask, Planned
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.request import POLICIES, UnusableCacheError
from videoserve_cache.steps.resolve import resolve

SCHEDULE = even(20)
MASK = "RR..R..R..R..R..R..R"


@pytest.mark.parametrize(
    ("told", "policy"),
    [
        ({}, Off()),
        ({"quality": "exact"}, Off()),
        ({"policy": "off", "verify": True}, Off()),
        ({"policy": "mask", "steps": MASK}, Mask(steps=MASK)),
        (
            {"policy": "mask", "steps": MASK, "order": 2, "axis": "step", "of": "output", "warmup": 3, "max_skips": 1},
            Mask(
                steps=MASK, forecast=Forecast(order=2, axis="step", of="output"), guards=Guards(warmup=3, max_skips=1)
            ),
        ),
        ({"policy": "latent", "threshold": 1}, Latent(threshold=1.0)),
        (
            {"policy": "first_blocks", "threshold": 0.1, "first": 2, "last": 1, "order": 1},
            FirstBlocks(threshold=0.1, first=2, last=1, forecast=Forecast(order=1)),
        ),
        ({"policy": "first_blocks", "threshold": 0.1}, FirstBlocks(threshold=0.1, forecast=Forecast(order=0))),
    ],
)
def test_a_policy_by_name(told: dict[str, Any], policy: Policy) -> None:
    request = parse(told)
    assert not request.calibrated
    assert request.verify == ("verify" in told)
    assert resolve(request, SCHEDULE, None).policy == policy


@pytest.mark.parametrize(
    ("told", "param", "sentence"),
    [
        ({"policy": "teacache"}, "policy", "cache.policy is 'teacache'; allowed: off, mask, latent, first_blocks, mag"),
        ({"policy": ["off"]}, "policy", r"cache.policy is \['off'\]; allowed: off"),
        (
            {"policy": "off", "threshold": 1},
            "threshold",
            "cache.threshold is nothing the policy off knows; it takes noth",
        ),
        ({"policy": "latent", "first": 1}, "first", "nothing the policy latent knows; it takes threshold, order, axis"),
        ({"policy": "latent"}, "threshold", "The policy latent needs cache.threshold, a number"),
        ({"policy": "mask"}, "steps", "The policy mask needs cache.steps, a text"),
        ({"policy": "mask", "steps": "RRxR"}, "steps", r"cache.steps is 'RRxR'; it has a letter a step: R .* or \."),
        ({"policy": "mask", "steps": ""}, "steps", "cache.steps is ''"),
        ({"policy": "latent", "threshold": "1"}, "threshold", "cache.threshold is '1'; it is a number"),
        ({"policy": "latent", "threshold": True}, "threshold", "cache.threshold is True; it is a number"),
        ({"policy": "latent", "threshold": float("inf")}, "threshold", "cache.threshold is inf; it is a number"),
        ({"policy": "latent", "threshold": -1}, "threshold", "cache.threshold is -1.0; it is a relative change: 0"),
        ({"policy": "latent", "threshold": 1, "order": 3}, "order", "cache.order is 3; allowed: 0, 1, 2"),
        ({"policy": "latent", "threshold": 1, "order": 1.0}, "order", "cache.order is 1.0; it is a whole number"),
        ({"policy": "latent", "threshold": 1, "axis": "t"}, "axis", "cache.axis is 't'; allowed: sigma, step"),
        ({"policy": "latent", "threshold": 1, "of": "x"}, "of", "cache.of is 'x'; allowed: residual, output"),
        ({"policy": "latent", "threshold": 1, "warmup": 0}, "warmup", "cache.warmup is 0; .* 1 or more"),
        ({"policy": "schedule", "runs": 9, "max_skips": -1}, "max_skips", "cache.max_skips is -1; .* 0 or more"),
        ({"policy": "first_blocks", "threshold": 1, "first": 0}, "first", "cache.first is 0; .* 1 or more"),
        ({"policy": "first_blocks", "threshold": 1, "last": -1}, "last", "cache.last is -1; .* 0 or more"),
        (
            {"policy": "magnitude", "threshold": 1, "retain": 2},
            "retain",
            "cache.retain is 2.0; it is a share .* 0 to 1",
        ),
        (
            {"policy": "first_blocks", "threshold": 1, "replay": True},
            "replay",
            "cache.replay is True; .* cannot take a step",
        ),
        ({"policy": "mask", "steps": "R.R", "replay": 1}, "replay", "cache.replay is 1; it is true or false"),
        ({"quality": "best"}, "quality", "cache.quality is 'best'; allowed: exact, high, balanced, fast"),
        ({"quality": ""}, "quality", "cache.quality is ''; allowed: exact, high, balanced, fast"),
        ({"quality": 0}, "quality", "cache.quality is 0; allowed: exact, high, balanced, fast"),
        ({"policy": "schedule", "runs": 0}, "runs", "cache.runs is 0; it is a number of steps: 1 or more"),
        ({"time_budget_s": 0}, "time_budget_s", "cache.time_budget_s is 0; it is above 0 seconds"),
        ({"time_budget_s": "10"}, "time_budget_s", "cache.time_budget_s is '10'; it is a number"),
        ({"verify": 1}, "verify", "cache.verify is 1; it is true or false"),
        ({"near": 0}, "near", "cache.near is 0; it is above 0 and at most 1"),
        ({"near": 1.5}, "near", "cache.near is 1.5; it is above 0 and at most 1"),
        ({"near": "much"}, "near", "cache.near is 'much'; it is a number"),
        ({"near": 0.9, "reuse": False}, "near", "cache.near asks for earlier videos, and cache.reuse is false"),
        ({"reuse": 0}, "reuse", "cache.reuse is 0; it is true or false"),
        ({"threshold": 1}, None, "cache.threshold has no use without cache.policy"),
        ({"quality": "high", "policy": "off"}, None, "cache has policy and quality; it takes one of"),
        ({"quality": "high", "time_budget_s": 3}, None, "cache has quality and time_budget_s; it takes one of"),
    ],
)
def test_a_bad_value_is_told_in_a_sentence(told: dict[str, Any], param: str | None, sentence: str) -> None:
    with pytest.raises(UnusableCacheError, match=sentence) as raised:
        parse(told)
    assert raised.value.param == ("cache" if param is None else f"cache.{param}")


@settings(max_examples=60, deadline=None)
@given(
    told=st.dictionaries(
        st.sampled_from(["policy", "quality", "time_budget_s", "verify", "threshold", "steps", "order", "runs", "x"]),
        st.one_of(
            st.none(), st.booleans(), st.floats(), st.integers(-3, 3), st.sampled_from([*POLICIES, "R.R", "high"])
        ),
    )
)
def test_anything_else_than_a_sentence_never_comes_out(told: dict[str, Any]) -> None:
    try:
        said = parse(told).policy or "off"
    except UnusableCacheError as error:
        said = f"{error.param} {error}"
    assert said in POLICIES or (said.startswith("cache") and said.endswith("."))


def test_a_mask_of_another_length_is_told() -> None:
    with pytest.raises(UnusableCacheError, match=r"The mask R\.R is for 3 steps; this video takes 20"):
        resolve(parse({"policy": "mask", "steps": "R.R"}), SCHEDULE, None)


@pytest.mark.parametrize(
    "told",
    [
        {"quality": "high"},
        {"time_budget_s": 5},
        {"policy": "schedule", "runs": 9},
        {"policy": "magnitude", "threshold": 1},
    ],
)
def test_what_needs_a_calibration_says_so(told: dict[str, Any]) -> None:
    request = parse(told)
    assert request.calibrated
    with pytest.raises(UnusableCacheError, match="needs a calibration of this model"):
        resolve(request, SCHEDULE, None)


@pytest.fixture(scope="module")
def curves() -> Curves:
    """Of a toy whose residual has at every step something that no forecast meets."""
    return Curves(measured(SCHEDULE, rough))


def rough(latents: Tensor, ctx: StepCtx) -> Tensor:
    return smooth()(latents, ctx) + 0.3 * noise(1000 + ctx.step)


def test_magnitude_takes_its_ratios_from_the_calibration(curves: Curves) -> None:
    policy = resolve(parse({"policy": "magnitude", "threshold": 0.3}), SCHEDULE, curves).policy
    assert isinstance(policy, Magnitude)
    assert policy.ratios == curves.calibration.ratios
    generation = begin(policy, SCHEDULE, rough)
    generation.finish()
    assert generation.cache.receipt()["steps"] == generation.cache.plan
    assert "." in generation.cache.receipt()["steps"]


def test_a_lower_quality_computes_fewer_steps(curves: Curves) -> None:
    digest, runs = curves.calibration.digest, []
    for quality, least in (("high", 36), ("balanced", 30), ("fast", 24)):
        resolved = resolve(parse({"quality": quality}), SCHEDULE, curves)
        assert isinstance(resolved.policy, Planned)
        assert resolved.policy.calibration == digest
        assert resolved.point is not None
        assert resolved.point.worst_db >= least
        runs.append(resolved.point.runs)
    assert runs == sorted(runs, reverse=True)
    assert runs[0] > runs[-1]
    assert resolve(parse({"quality": "exact"}), SCHEDULE, curves).policy == Off()


def test_a_time_budget_becomes_the_best_policy_within_it(curves: Curves) -> None:
    # 2 s besides the steps, 1 s a computed step and 0.01 s a skipped one.
    points = []
    for budget in (12.2, 15.0):
        resolved = resolve(parse({"time_budget_s": budget}), SCHEDULE, curves)
        assert resolved.point is not None
        assert resolved.seconds == curves.calibration.seconds(resolved.point.runs)
        assert resolved.seconds <= budget
        points.append(resolved.point)
    assert points[0].runs <= 10 < points[1].runs <= 13
    assert points[0].worst_db < points[1].worst_db
    assert resolve(parse({"time_budget_s": 22}), SCHEDULE, curves).policy == Off()
    with pytest.raises(UnusableCacheError, match=r"cache.time_budget_s is 3, but this video takes \d+\.\d s at least"):
        resolve(parse({"time_budget_s": 3}), SCHEDULE, curves)


def test_a_number_of_computed_steps_becomes_the_best_plan_with_it(curves: Curves) -> None:
    policy = resolve(parse({"policy": "schedule", "runs": 9}), SCHEDULE, curves).policy
    assert isinstance(policy, Planned)
    assert policy.steps.count("R") in (8, 9)
    with pytest.raises(UnusableCacheError, match=r"cache\.runs is 2, but at least 5 steps are always computed"):
        resolve(parse({"policy": "schedule", "runs": 2}), SCHEDULE, curves)
