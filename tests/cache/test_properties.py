"""What holds of a whole step cache, whatever it is fed: masks, metrics, guidance and experts drawn at random."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.toy_denoiser import begin, even, noise, polynomial, uncached
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.policy import executed
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

STEPS = 18
MASKS = st.text("R.", min_size=STEPS, max_size=STEPS)
GUARDS = st.builds(Guards, warmup=st.integers(1, 4), max_skips=st.integers(0, 6))
FORECASTS = st.builds(
    Forecast, order=st.sampled_from([0, 1, 2]), axis=st.sampled_from(["sigma", "step"]), of=st.just("residual")
)
# What the first blocks add: anything a broken model may give, and small changes.
ADDED = st.lists(
    st.one_of(st.floats(), st.floats(0.9, 1.1), st.sampled_from([0.0, 1.0])), min_size=STEPS, max_size=STEPS
)
WINDOWS = st.lists(st.booleans(), min_size=STEPS, max_size=STEPS).map(tuple)


@settings(max_examples=40)
@given(mask=MASKS, guards=GUARDS, forecast=FORECASTS, boundary=st.integers(1, STEPS), guided=WINDOWS)
def test_with_a_constant_residual_any_skipping_gives_the_same_video(
    mask: str, guards: Guards, forecast: Forecast, boundary: int, guided: tuple[bool, ...]
) -> None:
    schedule = replace(even(STEPS, boundary=boundary), guided=guided)
    generation = begin(Mask(steps=mask, forecast=forecast, guards=guards), schedule, polynomial(0))
    truth = uncached(schedule, polynomial(0))
    torch.testing.assert_close(generation.finish(), truth, atol=1e-10, rtol=1e-10)


@dataclass(frozen=True)
class Told:
    """The letters of both branches and what the probe said at each step."""

    cond: str
    uncond: str
    scalars: list[float]


def fed(policy: FirstBlocks | Latent | Mask, schedule: Schedule, added: list[float]) -> Told:
    """Runs a cache over tokens of one number each."""
    cache = StepCache(policy, schedule, "request", budget=Budget(1 << 20))
    scalars = []
    for step, number in enumerate(added):
        ctx, x = schedule.at(step, request="request"), torch.full((1, 1, 1), number, dtype=torch.float64)
        for branch in (ctx, ctx.of("uncond")) if ctx.guided else (ctx,):
            if cache.decide(branch, x if branch is ctx else None) is Decision.RUN:
                cache.keep(branch, x, x)
        scalar = next(decided.scalar for decided in reversed(cache.log) if decided.branch == "cond")
        scalars.append(math.nan if scalar is None else scalar)
    receipt = cache.receipt()
    return Told(receipt["steps"], receipt["uncond_steps"].ljust(STEPS), scalars)


@settings(max_examples=80)
@given(
    added=ADDED,
    guards=GUARDS,
    boundary=st.integers(1, STEPS),
    guided=WINDOWS,
    threshold=st.floats(1e-6, 10),
    latent=st.booleans(),
)
def test_guards_hold_for_any_metric_guidance_and_experts(
    added: list[float], guards: Guards, boundary: int, guided: tuple[bool, ...], threshold: float, latent: bool
) -> None:
    schedule = replace(even(STEPS, boundary=boundary), guided=guided)
    policy = (Latent if latent else FirstBlocks)(threshold=threshold, guards=guards)
    told = fed(policy, schedule, added)
    for letters in (told.cond, told.uncond):
        for first, after in ((0, boundary), (boundary, STEPS)):
            own = letters[first:after]
            # The first steps of an expert that a branch is asked for; and none further from a computed one.
            assert set(own.replace(" ", "")[: guards.warmup]) <= {"R"}
            assert all("R" in own[max(0, at - guards.max_skips) : at] for at, letter in enumerate(own) if letter == ".")
        assert letters[-1] in "R "
    assert all(math.isfinite(scalar) for scalar, letter in zip(told.scalars, told.cond, strict=True) if letter == ".")
    # Uncond is never forecast where cond was computed.
    assert all(pair != ("R", ".") for pair in zip(told.cond, told.uncond, strict=True))


@settings(max_examples=60)
@given(mask=MASKS, guards=GUARDS, boundary=st.integers(1, STEPS), guided=WINDOWS)
def test_a_static_plan_is_what_is_executed(mask: str, guards: Guards, boundary: int, guided: tuple[bool, ...]) -> None:
    schedule = replace(even(STEPS, boundary=boundary), guided=guided)
    policy = Mask(steps=mask, guards=guards)
    told = fed(policy, schedule, [1.0] * STEPS)
    assert told.cond == executed(policy, schedule)
    assert told.uncond == executed(policy, schedule, "uncond")


@settings(max_examples=60)
@given(
    drift=st.lists(st.floats(0, 0.2), min_size=STEPS, max_size=STEPS),
    thresholds=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)),
)
def test_first_blocks_that_drift_one_way_run_no_more_with_a_higher_threshold(
    drift: list[float], thresholds: tuple[float, float]
) -> None:
    """One way only: from a change that goes to and fro, a lower threshold may happen to compare with a better step."""
    added = [1 + sum(drift[: step + 1]) for step in range(STEPS)]
    guards = Guards(warmup=1, max_skips=STEPS)
    low, high = (
        fed(FirstBlocks(threshold=t, guards=guards), even(STEPS), added).cond.count("R") for t in sorted(thresholds)
    )
    assert high <= low


@settings(max_examples=40)
@given(mask=MASKS, stop=st.integers(1, STEPS - 1), order=st.sampled_from([0, 1, 2]), guided=st.booleans())
def test_a_state_taken_anywhere_goes_on_as_if_nothing_had_been(mask: str, stop: int, order: int, guided: bool) -> None:
    policy = Mask(steps=mask, forecast=Forecast(order=order))
    schedule = even(STEPS, guided=guided, boundary=7)
    whole, first, second = (begin(policy, schedule, polynomial(3)) for _ in range(3))
    for _ in range(stop):
        first.advance()
    second.cache.restore(*first.cache.state(), torch.device("cpu"))
    second.latents, second.step = first.latents, stop
    assert torch.equal(second.finish(), whole.finish())


@settings(max_examples=40)
@given(order=st.permutations(range(3 * STEPS)), masks=st.tuples(MASKS, MASKS, MASKS))
def test_requests_in_any_interleaving_are_what_they_are_alone(order: list[int], masks: tuple[str, ...]) -> None:
    budget = Budget(1 << 20)
    alone = [
        begin(Mask(steps=mask), even(STEPS), polynomial(2, seed), seed=seed).finish() for seed, mask in enumerate(masks)
    ]
    together = [
        begin(Mask(steps=mask), even(STEPS), polynomial(2, seed), seed=seed, request=f"job {seed}", budget=budget)
        for seed, mask in enumerate(masks)
    ]
    for turn in order:
        together[turn % 3].advance()
    for generation, expected in zip(together, alone, strict=True):
        assert torch.equal(generation.latents, expected)
        generation.cache.close()
    assert budget.held == 0
    assert not torch.equal(alone[0], noise(0))
