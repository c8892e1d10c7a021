"""A step cache that decides inside the forward, on every rank alike: what rank 0 tells the others of it."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from videoserve.video.families.middle import MiddleBlocks, branches_here, reduction
from videoserve.video.families.wan import WanTransformer
from videoserve.video.run import Run, need
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.policy import described
from videoserve_cache.steps.rebuilt import rebuilt
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget
from videoserve_kernels.comm.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which step of its only job a forward computes; `again` to put back what a resumed job has lost."""

    step: int
    again: bool = False


def inside(run: Run) -> bool:
    """Whether the decision falls within the forward, from what the first blocks add."""
    return run.steps is not None and run.steps.policy.probe == "blocks"


def place_of(run: Run) -> Place | None:
    """Where a run stands whose cache decides inside; None for others."""
    return Place(step=need(run.solver, "solver").index) if inside(run) else None


def context(run: Run) -> StepCtx:
    """The same, as its cache knows it; rank 0's part does not depend on who the others are."""
    return at(need(run.steps, "steps"), need(run.solver, "solver").index, (0,))


def at(cache: StepCache, step: int, group: tuple[int, ...]) -> StepCtx:
    return cache.schedule.at(step, request=cache.request, group=group)


def middle_blocks(cache: StepCache, place: Place, mesh: Mesh) -> MiddleBlocks:
    """What the forward of a place asks, on any rank."""
    ctx = at(cache, place.step, mesh.world.ranks)
    return MiddleBlocks(cache, ctx, branches_here(1 + ctx.guided, mesh), again=place.again)


def taken(run: Run) -> Decision:
    """What was decided of the step that has been computed, while the run still stands before it."""
    return need(run.steps, "steps").decide(context(run)) if inside(run) else Decision.RUN


def note(run: Run) -> None:
    """Keeps what a resumed job would need of the step that has been computed. BudgetExceededError."""
    if taken(run) is Decision.RUN:
        need(run.steps, "steps").note(context(run), need(run.latents, "latents"))


def lost(run: Run) -> list[tuple[Place, Tensor]]:
    """What a resumed run has to compute again before its next step: places and their latents [1, C, F, H, W]."""
    if not inside(run):
        return []
    return [(Place(step=ctx.step, again=True), latents) for ctx, latents in need(run.steps, "steps").lost(context(run))]


def will_hold(run: Run, transformer: WanTransformer, mesh: Mesh) -> int:
    """Bytes that the cache of a run takes on this rank, from its first computed step on."""
    latents = need(run.latents, "latents")
    cache = need(run.steps, "steps")
    rows = len(branches_here(1 + run.guided, mesh))
    depth: int = cache.policy.forecast.depth
    latents_bytes: int = latents.nbytes
    return (depth * rows + 1) * transformer.row_bytes(latents.shape[2:], mesh) + depth * latents_bytes


def told(run: Run) -> dict[str, Any] | None:
    """What the other ranks must know of a cache that decides inside; None where there is none."""
    if not inside(run):
        return None
    cache = need(run.steps, "steps")
    schedule = cache.schedule
    about = {"sigmas": schedule.sigmas, "experts": schedule.experts, "guided": schedule.guided}
    # Of what is kept each rank has its own.
    state = cache.state()[1] | {"store": []}
    return {"request": run.id, "policy": described(cache.policy), "schedule": about, "state": state}


def heard(about: dict[str, Any], budget: Budget, mesh: Mesh) -> StepCache:
    """The cache of another rank, from what rank 0 told."""
    schedule = Schedule(**{name: tuple(values) for name, values in about["schedule"].items()})
    policy, request = rebuilt(about["policy"]), about["request"]
    cache = StepCache(policy, schedule, request, budget=budget, reduce=reduction(mesh))
    cache.restore({}, about["state"], mesh.device)
    return cache
