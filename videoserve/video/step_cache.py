"""What a run's step cache is told and asked at each step: on rank 0, of the guided velocity, before any forward."""

from collections.abc import Sequence

import torch
from torch import Tensor

from videoserve.types import AdapterUse
from videoserve.video.families.middle import reduction
from videoserve.video.inside import inside, note
from videoserve.video.progress import position
from videoserve.video.run import Before, Run, need
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget
from videoserve_kernels.comm.mesh import Mesh


def schedule_of(run: Run) -> Schedule:
    """All steps of a run, as its solver takes them; needs nothing but the plan and the solver."""
    solver = need(run.solver, "solver")
    experts = tuple(expert_at(run, timestep) for timestep in solver.timesteps)
    return Schedule(sigmas=solver.sigmas, experts=experts, guided=(run.guided,) * solver.total)


def spelled(loras: Sequence[AdapterUse]) -> tuple[str, ...]:
    """The adapters of a plan as words that are equal for equal ones alone."""
    return tuple(f"{use.digest}*{use.weight!r}@{use.target}" for use in loras)


def expert_at(run: Run, timestep: float) -> int:
    """Which expert takes a step: 0 the only or the high-noise one, 1 the low-noise one."""
    boundary = run.plan.boundary
    return int(boundary is not None and timestep < boundary * need(run.solver, "solver").train_timesteps)


def begin(run: Run, policy: Policy, budget: Budget, mesh: Mesh) -> None:
    """Gives a run its cache, or none where every step is computed and nothing looked at; `mesh` is its forwards'."""
    if policy.name != "off":
        run.steps = StepCache(policy, schedule_of(run), run.id, budget=budget, reduce=reduction(mesh))
    run.alone = run.alone or inside(run)


def give_up(run: Run, why: str) -> str:
    """Goes on without a cache that the budget has no room for; the sentence that its client is to be told."""
    run.close()
    run.steps = run.before = None
    run.record.crowded = True
    return f"{why} From step {position(run)[0] + 1} on every step is computed."


def context(run: Run) -> StepCtx:
    """Where a run with a cache stands. Rank 0 decides for all, so the group is itself."""
    cache = need(run.steps, "steps")
    ctx: StepCtx = cache.schedule.at(need(run.solver, "solver").index, request=run.id)
    return ctx


def skips(run: Run) -> bool:
    """Whether the run's next step is to be forecast. Asked again before the step is taken, the answer is the same."""
    if run.steps is None or inside(run):
        return False
    return run.steps.decide(context(run), run.latents) is Decision.SKIP


def forecast(run: Run) -> Tensor:
    """The velocity [1, C, F, H, W] that a skipped step is taken to have."""
    cache, latents = need(run.steps, "steps"), need(run.latents, "latents")
    if cache.policy.forecast.replay and run.before is None:
        run.before = Before(latents=latents, solver=need(run.solver, "solver").copy())
    velocity: Tensor = cache.estimate(context(run), latents)
    return velocity


def keep(run: Run, velocity: Tensor) -> None:
    """Takes in what a computed step gave, and takes the skipped ones before it once more where the policy wants that.

    The run stands before the computed step, then as now. BudgetExceededError.
    """
    if run.steps is None:
        return
    if inside(run):
        note(run)
        return
    ctx = context(run)
    run.steps.keep(ctx, need(run.latents, "latents"), velocity)
    owed = run.steps.owed(ctx)
    if owed:
        replay(run, owed)
    run.before = None


@torch.inference_mode()
def replay(run: Run, owed: list[StepCtx]) -> None:
    """From before the first of the skipped steps, each again with what is forecast of it by now."""
    before, cache = need(run.before, "before"), need(run.steps, "steps")
    run.latents, run.solver = before.latents, before.solver
    for ctx in owed:
        run.latents = before.solver.step(cache.estimate(ctx, run.latents), run.latents)
