"""Requests that share nothing: experts, branches, resumed and given-up jobs, and what is refused."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.toy_denoiser import Generation, begin, even, polynomial, smooth, uncached
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.store import Budget, BudgetExceededError

MASK = "RR....R.R.R.R.R.R.R."
STATIC: list[Policy] = [
    Off(),
    Mask(steps=MASK),
    Mask(steps=MASK, guards=Guards(warmup=3, max_skips=1)),
    Magnitude(threshold=0.3, ratios=tuple(1 - 0.01 * step for step in range(20))),
    Latent(threshold=0.0),
]
SKIPPING: list[Policy] = [*STATIC[1:4], Latent(threshold=0.2), Latent(threshold=0.2, forecast=Forecast(of="output"))]


def test_experts_hold_nothing_of_each_other() -> None:
    schedule = even(20, boundary=10)
    generation = begin(Mask(steps="RR........RR.......R", guards=Guards(max_skips=9)), schedule, polynomial(1))
    torch.testing.assert_close(generation.finish(), uncached(schedule, polynomial(1)), atol=1e-9, rtol=1e-9)
    lured = begin(Mask(steps="RR..................", guards=Guards(max_skips=99, warmup=1)), schedule, polynomial(1))
    lured.finish()
    assert lured.cache.receipt()["steps"] == "RR........R........R"
    assert lured.cache.receipt()["why"][10] == "first"


def test_a_guidance_window_gives_the_other_branch_a_history_of_its_own() -> None:
    schedule = replace(even(20), guided=(False,) * 6 + (True,) * 8 + (False,) * 6)
    policy = Mask(steps="RR..R..R..R..R..R..R", guards=Guards(warmup=2))
    generation = begin(policy, schedule, polynomial(1))
    torch.testing.assert_close(generation.finish(), uncached(schedule, polynomial(1)), atol=1e-9, rtol=1e-9)
    receipt = generation.cache.receipt()
    # Step 6 is skipped by cond, but uncond has nothing yet; and it needs two before it forecasts.
    assert receipt["uncond_steps"] == " " * 6 + "RR..R..R" + " " * 6
    assert receipt["steps"] == policy.steps


@pytest.mark.parametrize("policy", SKIPPING, ids=lambda policy: policy.name)
def test_a_resumed_job_ends_bit_for_bit_like_an_undisturbed_one(policy: Policy) -> None:
    schedule = even(20, guided=True, boundary=9)
    whole = begin(policy, schedule, smooth())
    expected = whole.finish()
    assert "." in whole.cache.receipt()["steps"]
    for stop in range(1, 20):
        first = begin(policy, schedule, smooth())
        for _ in range(stop):
            first.advance()
        tensors, state = first.cache.state()
        first.cache.close()
        second = begin(policy, schedule, smooth())
        second.cache.restore(tensors, round_trip(state), torch.device("cpu"))
        second.latents, second.step = first.latents, stop
        assert torch.equal(second.finish(), expected)
        assert second.cache.receipt() == whole.cache.receipt() | {"peak_bytes": second.cache.receipt()["peak_bytes"]}


def round_trip(state: dict[str, object]) -> dict[str, object]:
    told: dict[str, object] = json.loads(json.dumps(state, allow_nan=False))
    return told


def test_a_state_of_something_else_is_refused() -> None:
    generation = begin(Mask(steps=MASK), even(20), smooth())
    generation.advance()
    tensors, state = generation.cache.state()
    others = [
        begin(Mask(steps=MASK, forecast=Forecast(order=0)), even(20), smooth()),
        begin(Mask(steps=MASK), even(20, guided=True), smooth()),
        begin(Mask(steps=MASK), even(20), smooth(), request="another"),
    ]
    for other, name in zip(others, ("policy", "schedule", "request"), strict=True):
        with pytest.raises(ValueError, match=f"kept with another {name}"):
            other.cache.restore(tensors, state, torch.device("cpu"))
        assert other.cache.nbytes == 0


@pytest.mark.parametrize("policy", SKIPPING, ids=lambda policy: policy.name)
def test_an_abort_at_any_step_leaves_nothing_behind(policy: Policy) -> None:
    schedule, budget = even(12, guided=True), Budget(1 << 20)
    policy = shortened(policy)
    expected = begin(policy, schedule, smooth(), request="second").finish()

    def broken(at: int) -> Callable[..., torch.Tensor]:
        def model(latents: torch.Tensor, ctx: object) -> torch.Tensor:
            if generation.step == at:
                raise RuntimeError("the card is gone")
            return smooth()(latents, ctx)  # type: ignore[arg-type]

        return model

    for at in range(12):
        generation = begin(policy, schedule, broken(at), seed=1, budget=budget, request="first")
        try:
            with generation.cache:
                generation.finish()
        except RuntimeError:
            assert generation.step == at
        assert budget.held == 0
        after = begin(policy, schedule, smooth(), budget=budget, request="second")
        assert torch.equal(after.finish(), expected)
        after.cache.close()


def shortened(policy: Policy) -> Policy:
    """The same policy for 12 steps."""
    if isinstance(policy, Mask):
        return replace(policy, steps=policy.steps[:12])
    return replace(policy, ratios=policy.ratios[:12]) if isinstance(policy, Magnitude) else policy


def test_interleaved_requests_equal_sequential_ones() -> None:
    schedule = even(20, guided=True)
    policy, budget = Latent(threshold=0.2), Budget(1 << 20)
    alone = [begin(policy, schedule, smooth(seed), seed=seed).finish() for seed in range(3)]
    together = [
        begin(policy, schedule, smooth(seed), seed=seed, request=f"job {seed}", budget=budget) for seed in range(3)
    ]
    for _ in range(schedule.n_steps):
        for generation in together:
            generation.advance()
    for generation, expected in zip(together, alone, strict=True):
        assert torch.equal(generation.latents, expected)
        generation.cache.close()
    assert budget.held == 0


def test_changed_adapters_or_another_shape_carry_nothing_over() -> None:
    for change in ("epoch", "shape"):
        generation = begin(Mask(steps=MASK, guards=Guards(warmup=1)), even(20), polynomial(0))
        for _ in range(3):
            generation.advance()
        assert generation.cache.receipt()["steps"] == "RR."
        kept = generation.cache.nbytes
        if change == "epoch":
            generation.epoch = "other weights"
        else:
            generation.latents = generation.latents[:, :, :, :2]
            generation.model = lambda latents, ctx: latents + 1
        generation.advance()
        assert generation.cache.receipt()["steps"] == "RR.R"
        assert generation.cache.receipt()["why"][-1] == "first"
        assert generation.cache.nbytes == (kept if change == "epoch" else kept / 2)


def test_numbers_that_are_none_are_computed() -> None:
    schedule = even(12)
    for odd in (0.0, float("nan"), float("inf")):
        generation = begin(Latent(threshold=1e9), schedule, lambda latents, ctx, odd=odd: latents * odd)  # type: ignore[misc]
        generation.finish()
        assert generation.cache.receipt()["steps"] == "R" * 12
        assert set(generation.cache.receipt()["why"][2:-1]) == {"number"}


def test_a_step_that_is_tried_again_is_not_decided_again() -> None:
    generation = begin(Latent(threshold=0.2), even(20), smooth())
    expected = begin(Latent(threshold=0.2), even(20), smooth()).finish()
    while generation.step < 20:
        ctx = generation.cache.schedule.at(generation.step, request="request", epoch="weights")
        generation.cache.decide(ctx, generation.latents)
        generation.advance()
    assert torch.equal(generation.latents, expected)


def test_a_budget_too_small_is_told_and_another_request_goes_on() -> None:
    budget = Budget(1000)
    generation = begin(Latent(threshold=0.2), even(20), smooth(), budget=budget)
    with pytest.raises(BudgetExceededError, match="of the budget's 1000 bytes"), generation.cache:
        generation.finish()
    assert budget.held == 0


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="is for 3 steps; this video takes 20"):
        StepCache(Mask(steps="R.R"), even(20), "request", budget=Budget(0))


def test_the_saving_grows_and_the_fidelity_falls_with_the_threshold() -> None:
    schedule, truth = even(20), uncached(even(20), smooth())
    runs, errors = [], []
    for threshold in (0.01, 0.05, 0.2, 0.5):
        generation: Generation = begin(Latent(threshold=threshold), schedule, smooth())
        errors.append(float((generation.finish() - truth).norm() / truth.norm()))
        runs.append(generation.calls["cond"])
    assert runs == sorted(runs, reverse=True)
    assert runs[-1] < 10
    assert errors[0] < 1e-2 < 10 * errors[-1]
