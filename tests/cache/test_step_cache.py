"""A whole denoising loop with a step cache around it."""

from dataclasses import replace

import pytest
import torch

from tests.toy_denoiser import begin, even, polynomial, smooth, uncached
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.policy import Policy, executed
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

MASK = "RR....R.R.R.R.R.R.R."
EXECUTED = "RR....R.R.R.R.R.R.RR"
STATIC: list[Policy] = [
    Off(),
    Mask(steps=MASK),
    Mask(steps=MASK, guards=Guards(warmup=3, max_skips=1)),
    Magnitude(threshold=0.3, ratios=tuple(1 - 0.01 * step for step in range(20))),
    Latent(threshold=0.0),
]


def test_off_and_a_threshold_of_0_keep_and_measure_nothing() -> None:
    schedule = even(20, guided=True)
    for policy in (Off(), Latent(threshold=0.0)):
        generation = begin(policy, schedule, smooth())
        assert torch.equal(generation.finish(), uncached(schedule, smooth()))
        assert generation.cache.receipt()["peak_bytes"] == 0
        assert generation.cache.receipt()["probe"] == [None] * 20


@pytest.mark.parametrize("policy", [Latent(threshold=1e-30), Mask(steps="R" * 20)])
def test_all_steps_computed_is_the_uncached_video_bit_for_bit(policy: Policy) -> None:
    schedule = even(20, guided=True)
    generation = begin(policy, schedule, smooth())
    assert torch.equal(generation.finish(), uncached(schedule, smooth()))
    assert (generation.cache.receipt()["peak_bytes"] > 0) == isinstance(policy, Latent)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_residuals_of_the_forecast_s_order_lose_nothing(order: int) -> None:
    schedule = even(20, guided=True)
    policy = Mask(steps=MASK, forecast=Forecast(order=order), guards=Guards(warmup=order + 1))
    generation = begin(policy, schedule, polynomial(order))
    torch.testing.assert_close(generation.finish(), uncached(schedule, polynomial(order)), atol=1e-9, rtol=1e-9)
    assert generation.calls["cond"] == generation.calls["uncond"] < 12
    worse = begin(replace(policy, forecast=Forecast(order=order)), schedule, polynomial(order + 1))
    assert not torch.allclose(worse.finish(), uncached(schedule, polynomial(order + 1)), atol=1e-3)


def test_higher_orders_are_nearer_on_a_smooth_model() -> None:
    schedule, truth = even(20), uncached(even(20), smooth())
    errors = [
        float((begin(Mask(steps=MASK, forecast=Forecast(order=order)), schedule, smooth()).finish() - truth).norm())
        for order in (0, 1)
    ]
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize("order", [1, 2])
def test_a_replay_comes_nearer_with_the_same_steps_computed(order: int) -> None:
    schedule = even(20, guided=True)
    mask, truth, errors = "RR..R..R..R..R..R..R", uncached(even(20, guided=True), smooth()), []
    for replay in (False, True):
        generation = begin(Mask(steps=mask, forecast=Forecast(order=order, replay=replay)), schedule, smooth())
        errors.append(float((generation.finish() - truth).norm()))
        assert generation.calls == {"cond": 8, "uncond": 8}
    assert errors[1] < errors[0] / 2


def test_a_loop_that_does_not_replay_what_is_owed_is_found_out() -> None:
    schedule = even(20)
    cache = StepCache(Mask(steps=MASK, forecast=Forecast(replay=True)), schedule, "request", budget=Budget(1 << 20))
    for step in range(7):
        ctx = schedule.at(step, request="request")
        if cache.decide(ctx) == "R":
            cache.keep(ctx, torch.ones(2), torch.ones(2))
    with pytest.raises(AssertionError, match="has not replayed"):
        cache.decide(schedule.at(7, request="request"))


def test_only_skipped_steps_right_before_a_computed_one_are_replayed() -> None:
    for replay in (False, True):
        generation = begin(Mask(steps=MASK, forecast=Forecast(replay=replay)), even(20), smooth())
        owed = []
        while generation.step < 20:
            ctx = generation.cache.schedule.at(generation.step, request="request", epoch="weights")
            generation.advance()
            owed.append([past.step for past in generation.cache.owed(ctx)])
        assert owed[6] == ([2, 3, 4, 5] if replay else [])
        assert owed[8] == ([7] if replay else [])
        assert owed[1] == owed[19] == []


@pytest.mark.parametrize("policy", STATIC, ids=lambda policy: policy.name)
def test_a_static_plan_is_what_is_executed(policy: Policy) -> None:
    schedule = even(20, guided=True, boundary=9)
    generation = begin(policy, schedule, smooth())
    generation.finish()
    assert generation.cache.plan is not None
    receipt = generation.cache.receipt()
    assert receipt["steps"] == generation.cache.plan
    assert receipt["uncond_steps"] == executed(policy, schedule, "uncond")


def test_a_mask_with_its_guards() -> None:
    generation = begin(Mask(steps=MASK), even(20), smooth())
    generation.finish()
    receipt = generation.cache.receipt()
    assert (receipt["steps"], receipt["steps_saved"], generation.calls["cond"]) == (EXECUTED, 10, 10)
    assert receipt["why"][-1] == "last"
    assert receipt["why"][:2] == ["first", "warmup"]


def test_the_receipt_says_which_steps_guards_had_computed() -> None:
    def told(policy: Policy, schedule: Schedule) -> list[str]:
        generation = begin(policy, schedule, smooth())
        generation.finish()
        overruled: list[str] = generation.cache.receipt()["overruled"]
        return overruled

    assert told(Mask(steps="RR.R.RR.RR"), even(10)) == []
    assert told(Mask(steps="." * 12, guards=Guards(warmup=2, max_skips=2)), even(12, boundary=7)) == [
        "Steps 1 and 8 had to be computed: the first one of an expert always is.",
        "Steps 2 and 9 had to be computed: the first 2 of an expert always are (warmup).",
        "Step 5 had to be computed: at most 2 in a row are skipped (max_skips).",
        "Step 12 had to be computed: the last one always is.",
    ]
    # Whatever is below the threshold is skipped, but for the guards.
    assert told(Latent(threshold=1e9, guards=Guards(max_skips=3)), even(11)) == [
        "Steps 6 and 10 had to be computed: at most 3 in a row are skipped (max_skips).",
        "Step 11 had to be computed: the last one always is.",
    ]
