"""Faults that step caches of other systems had, each tried against ours; the rest are among the other tests."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.toy_denoiser import Generation, begin, even, noise, polynomial, smooth, uncached
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import LEAD, Decision, StepCtx
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

EAGER: list[Policy] = [
    Mask(steps="." * 20, guards=Guards(max_skips=1, warmup=1)),
    Latent(threshold=1e9, guards=Guards(max_skips=1, warmup=1)),
    FirstBlocks(threshold=1e9, guards=Guards(max_skips=1, warmup=1)),
]


def fed(policy: Policy, schedule: Schedule, numbers: list[float]) -> str:
    """The letters over tokens of one number each."""
    cache = StepCache(policy, schedule, "request", budget=Budget(1 << 20))
    for step, number in enumerate(numbers):
        ctx, x = schedule.at(step, request="request"), torch.full((1, 1, 1), number, dtype=torch.float64)
        if cache.decide(ctx, x) is Decision.RUN:
            cache.keep(ctx, x, 2 * x)
    steps: str = cache.receipt()["steps"]
    return steps


@pytest.mark.parametrize("policy", EAGER, ids=lambda policy: policy.name)
def test_a_limit_of_1_skip_in_a_row_gives_1_and_not_2(policy: Policy) -> None:
    numbers = [1 + 0.001 * step for step in range(20)]
    # The second step has no change of an output to foretell by yet.
    begun = "RR" if policy.name == "latent" else "R"
    letters = fed(policy, even(20), numbers)
    assert ".." not in letters
    assert letters == (begun + ".R" * 10)[:19] + "R"


@pytest.mark.parametrize("policy", EAGER[1:], ids=lambda policy: policy.name)
def test_no_counter_stops_later_skipping(policy: Policy) -> None:
    letters = fed(policy, even(200), [1 + 0.001 * step for step in range(200)])
    assert letters.count(".") >= 98
    assert letters[-20:].count(".") >= 9


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("policy", EAGER[1:], ids=lambda policy: policy.name)
def test_a_metric_that_is_no_number_does_not_mean_skip(policy: Policy, odd: float) -> None:
    numbers = [1 + 0.001 * step for step in range(20)]
    numbers[8] = odd
    calm = fed(policy, even(20), [1 + 0.001 * step for step in range(20)])
    letters = fed(policy, even(20), numbers)
    assert letters[:8] == calm[:8]
    assert letters[8] == "R"
    # What was computed of it is compared with next: no number again.
    assert letters[9] == "R"


def test_a_metric_of_0_by_0_does_not_mean_skip() -> None:
    for policy in EAGER[1:]:
        assert fed(policy, even(20), [0.0] * 20) == "R" * 20


@pytest.mark.parametrize("guided", ["never", "in a window", "always"])
def test_branches_are_told_apart_by_name_and_not_by_counting_calls(guided: str) -> None:
    flags = {"never": (False,) * 20, "in a window": (False,) * 5 + (True,) * 9 + (False,) * 6, "always": (True,) * 20}
    whole = even(20)
    schedule = Schedule(sigmas=whole.sigmas, experts=whole.experts, guided=flags[guided])
    # Residuals of cond and uncond are far apart: one taken for the other would be a large error.
    generation = begin(Mask(steps="RR.." * 5, forecast=Forecast(order=0)), schedule, polynomial(0))
    torch.testing.assert_close(generation.finish(), uncached(schedule, polynomial(0)), atol=1e-9, rtol=1e-9)
    assert generation.calls["cond"] == 11


def test_what_an_aborted_request_kept_does_not_serve_the_next_one() -> None:
    budget = Budget(1 << 20)
    for stop in range(1, 12):
        first = begin(Latent(threshold=0.3), even(12), polynomial(1, seed=5), budget=budget, request="same")
        with first.cache:
            for _ in range(stop):
                first.advance()
        assert budget.held == 0
        # Even with the id of the aborted one.
        second = begin(Latent(threshold=0.3), even(12), smooth(), budget=budget, request="same")
        expected = begin(Latent(threshold=0.3), even(12), smooth()).finish()
        assert torch.equal(second.finish(), expected)
        second.cache.close()


def test_a_step_of_another_request_is_an_error_and_not_an_answer() -> None:
    cache = StepCache(Mask(steps="R" * 12), even(12), "mine", budget=Budget(0))
    with pytest.raises(AssertionError, match="the cache of mine was asked about another"):
        cache.decide(even(12).at(0, request="another"))


def test_what_is_kept_survives_a_model_that_writes_into_its_inputs_and_outputs() -> None:
    policy = Mask(steps="RR..R..R..R..R..R..R", forecast=Forecast(order=1))

    class Scribbling(Generation):
        def branch(self, ctx: StepCtx) -> Tensor:
            if self.cache.decide(ctx, self.latents if ctx.branch == LEAD else None) is Decision.SKIP:
                return self.cache.estimate(ctx, self.latents)
            inputs = self.latents.clone()
            out = self.model(self.latents, ctx)
            told = out.clone()
            self.cache.keep(ctx, inputs, told)
            inputs.fill_(math.nan)
            told.fill_(math.nan)
            return out

    cache = StepCache(policy, even(20), "request", budget=Budget(1 << 20))
    scribbling = Scribbling(smooth(), cache, noise(9))
    assert torch.equal(scribbling.finish(), begin(policy, even(20), smooth()).finish())


def test_an_estimate_that_is_written_into_does_not_change_what_is_kept() -> None:
    schedule = even(12)
    for policy in (Mask(steps="R" * 3 + "." * 9, forecast=Forecast(order=order)) for order in (0, 1, 2)):
        cache = StepCache(policy, schedule, "request", budget=Budget(1 << 20))
        x = noise(1)
        for step in range(3):
            ctx = schedule.at(step, request="request")
            cache.decide(ctx)
            cache.keep(ctx, x, smooth()(x, ctx))
        ctx = schedule.at(3, request="request")
        assert cache.decide(ctx) is Decision.SKIP
        first = cache.estimate(ctx, x)
        expected = first.clone()
        with torch.inference_mode():
            first.fill_(math.nan)
        assert torch.equal(cache.estimate(ctx, x), expected)


def drifting(policy: Policy, change: float) -> str:
    return fed(policy, even(60), [(1 + change) ** step for step in range(60)])


@pytest.mark.parametrize("change", [0.005, 0.02, 0.04])
def test_small_changes_do_not_add_up_unseen(change: float) -> None:
    """Each is below the threshold for ever; what has changed since the last computed step is not."""
    free = Guards(warmup=1, max_skips=60)
    for policy in (FirstBlocks(threshold=0.05, guards=free), Latent(threshold=0.05, guards=free)):
        letters = drifting(policy, change)
        longest = max(len(skips) for skips in letters.split("R"))
        assert "." in letters
        assert (1 + change) ** longest - 1 < 0.08


def test_the_cap_bounds_what_no_metric_sees() -> None:
    still: list[Any] = [FirstBlocks(threshold=0.05), Latent(threshold=0.05)]
    for policy in still:
        letters = fed(policy, even(60), [1.0 + 1e-4 * step for step in range(60)])
        assert max(len(skips) for skips in letters.split("R")) == policy.guards.max_skips
