"""FBCache and DBCache over a stack of blocks."""

import pytest
import torch
from torch import Tensor

from tests.toy_denoiser import Stack, even
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.store import Budget

BLOCKS = 6
STEPS = 16


def tokens() -> Tensor:
    return torch.randn(1, 11, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def denoised(policy: FirstBlocks, stack: Stack) -> tuple[Tensor, StepCache]:
    schedule = even(STEPS)
    cache = StepCache(policy, schedule, "request", budget=Budget(1 << 20))
    x = tokens()
    for step in range(STEPS):
        ctx = schedule.at(step, request="request")
        x = x + (ctx.sigma_next - ctx.sigma) * stack.forward(x, ctx, cache)
    return x, cache


def uncached(stack: Stack) -> Tensor:
    return denoised(FirstBlocks(threshold=0.0), stack)[0]


def test_a_threshold_of_0_is_the_uncached_result_and_holds_nothing() -> None:
    expected = tokens()
    schedule = even(STEPS)
    for step in range(STEPS):
        ctx = schedule.at(step)
        change = Stack(BLOCKS).run(expected.clone(), range(BLOCKS), ctx.sigma)
        expected = expected + (ctx.sigma_next - ctx.sigma) * change
    got, cache = denoised(FirstBlocks(threshold=0.0), Stack(BLOCKS))
    assert torch.equal(got, expected)
    assert cache.receipt()["peak_bytes"] == 0


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("first", "last"), [(1, 0), (2, 1), (1, 3)])
def test_all_steps_computed_is_exact_also_with_blocks_that_work_in_place(in_place: bool, first: int, last: int) -> None:
    got, cache = denoised(FirstBlocks(threshold=1e-30, first=first, last=last), Stack(BLOCKS, in_place=in_place))
    assert cache.receipt()["steps"] == "R" * STEPS
    assert cache.nbytes > 0
    assert torch.equal(got, uncached(Stack(BLOCKS)))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_skips_the_middle_and_stays_near(order: int) -> None:
    stack = Stack(BLOCKS)
    policy = FirstBlocks(threshold=0.15, first=1, last=1, forecast=Forecast(order=order))
    got, cache = denoised(policy, stack)
    truth, skips = uncached(Stack(BLOCKS)), cache.receipt()["steps"].count(".")
    assert skips >= 5
    assert stack.computed == BLOCKS * STEPS - skips * (BLOCKS - 2)
    assert float((got - truth).norm() / truth.norm()) < (0.15, 0.05, 0.05)[order]


@pytest.mark.parametrize(("first", "last"), [(BLOCKS, 0), (BLOCKS + 3, 0), (2, BLOCKS)])
def test_with_no_block_left_to_skip_a_skip_is_exact(first: int, last: int) -> None:
    policy = FirstBlocks(threshold=9.0, first=first, last=last)
    assert len(policy.middle(BLOCKS)) == 0
    got, cache = denoised(policy, Stack(BLOCKS))
    assert "." in cache.receipt()["steps"]
    assert torch.equal(got, uncached(Stack(BLOCKS)))


def test_compares_with_the_last_computed_step_so_that_drift_is_bounded() -> None:
    # Every step moves by 2%: less than the threshold for ever, were it compared with the step before.
    schedule = even(30)
    policy = FirstBlocks(threshold=0.05, guards=Guards(max_skips=99, warmup=1))
    cache = StepCache(policy, schedule, "request", budget=Budget(1 << 20))
    for step in range(30):
        ctx = schedule.at(step, request="request")
        added = torch.full((1, 2, 2), 1.02**step)
        if cache.decide(ctx, added) == "R":
            cache.keep(ctx, added, added)
    assert cache.receipt()["steps"] == "R.." * 9 + "R.R"


def test_fewer_steps_run_with_a_higher_threshold() -> None:
    runs = [
        denoised(FirstBlocks(threshold=t), Stack(BLOCKS))[1].receipt()["steps"].count("R")
        for t in (0.02, 0.05, 0.2, 0.8)
    ]
    assert runs == sorted(runs, reverse=True)
    assert runs[0] > runs[-1]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"threshold": -0.1}, "threshold is -0.1"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": 0.1, "first": 0}, "first is 0"),
        ({"threshold": 0.1, "last": -1}, "last is -1"),
    ],
)
def test_says_what_is_allowed(fields: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        FirstBlocks(**fields)  # type: ignore[arg-type]
