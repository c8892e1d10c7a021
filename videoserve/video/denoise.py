"""Stage two: one denoising step, for one job or for several of the same shape in one forward."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from videoserve.errors import JobFailed
from videoserve.video.families.conditioning import Conditioning
from videoserve.video.families.context import TextContext, lengthened
from videoserve.video.inside import Place, lost, middle_blocks, place_of
from videoserve.video.load import Components, Model
from videoserve.video.run import Encoded, Run, need
from videoserve.video.step_cache import expert_at
from videoserve_cache.steps.cache import StepCache
from videoserve_kernels.comm.gather import branch_rows
from videoserve_kernels.comm.mesh import Mesh

# Texts are filled up to a multiple of this, so that a job's sums run in the same order alone and in company.
TEXT_BUCKET = 16


def expert_of(run: Run) -> int:
    """Which expert takes the run's next step: 0 the only or the high-noise one, 1 the low-noise one."""
    return expert_at(run, float(need(run.solver, "solver").timestep))


@torch.inference_mode()
def velocities(components: Components, runs: Sequence[Run]) -> list[Tensor]:
    """The guided velocity [1, C, F, H, W] of each run at its own next timestep.

    All runs have the same latent shape, the same expert next, and guidance either all or none. Changes nothing but
    the runs' contexts.
    """
    expert = expert_of(runs[0])
    for place, before in lost(runs[0]):
        timestep = need(runs[0].solver, "solver").timesteps[place.step]
        forward(components, expert, runs, before, torch.tensor([timestep], device=before.device), place)
    latents = torch.cat([need(run.latents, "latents") for run in runs])
    timesteps = torch.stack([need(run.solver, "solver").timestep for run in runs])
    rows = forward(components, expert, runs, latents, timesteps, place_of(runs[0]))
    return [guided(run, mine, expert) for run, mine in zip(runs, rows.chunk(len(runs)), strict=True)]


def forward(
    components: Components,
    expert: int,
    runs: Sequence[Run],
    latents: Tensor,
    timesteps: Tensor,
    place: Place | None,
) -> Tensor:
    """The same of `predict`, with all ranks, and with the adapters that all of these runs have."""
    with components.ranks.denoise(runs, expert, latents, timesteps, place) as mesh:
        components.adapters.bind(expert, runs[0].plan.loras)
        return predict(components, expert, runs, latents, timesteps, mesh, place)


class Prompted(Protocol):
    """A job as a forward sees it: a Run on rank 0, a Guest elsewhere."""

    steps: StepCache | None
    encoded: Encoded | None
    contexts: dict[int, TextContext]


@torch.inference_mode()
def predict(
    model: Model,
    expert: int,
    jobs: Sequence[Prompted],
    latents: Tensor,
    timesteps: Tensor,
    mesh: Mesh,
    place: Place | None = None,
) -> Tensor:
    """The velocity of every job and branch, [J · branches, C, F, H, W]; every rank of the mesh calls this alike.

    latents [J, C, F, H, W]; timesteps [J]. `place` where the only job's cache decides inside the forward.
    """
    for job in jobs:
        prepare_context(model, job, expert, mesh)
    conditioning = Conditioning.stack([need(job.encoded, "encoded").conditioning for job in jobs])
    context = TextContext.stack([job.contexts[expert] for job in jobs])
    middle = None if place is None else middle_blocks(need(jobs[0].steps, "steps"), place, mesh)
    return model.experts[expert].forward(conditioning.model_input(latents), timesteps, context, mesh, middle)


def guided(run: Run, rows: Tensor, expert: int) -> Tensor:
    """Classifier-free guidance over a run's rows, cond and uncond [2, C, F, H, W] or cond alone; [1, C, F, H, W]."""
    if not run.guided:
        return rows
    cond, uncond = rows.chunk(2)
    scale = need(run.plan.guidance_2, "guidance_2") if expert == 1 else run.plan.guidance
    return uncond + scale * (cond - uncond)


def prepare_context(model: Model, job: Prompted, expert: int, mesh: Mesh) -> None:
    """Cross-attention keys and values for this expert, of the branches this rank computes; those of the last go."""
    if expert in job.contexts:
        return
    job.contexts.clear()
    encoded = need(job.encoded, "encoded")
    texts = encoded.texts[branch_rows(len(encoded.texts), mesh)]
    context = model.experts[expert].prepare_text(
        texts, encoded.text_length, branches=len(texts), image_embeds=encoded.image_embeds
    )
    job.contexts[expert] = bucketed(context)


def bucketed(context: TextContext) -> TextContext:
    """The same context with keys that nothing attends to, up to the next multiple of TEXT_BUCKET."""
    length = -(-context.key_bias.shape[1] // TEXT_BUCKET) * TEXT_BUCKET
    return TextContext(
        keys=tuple(lengthened(keys, length, 0.0) for keys in context.keys),
        values=tuple(lengthened(values, length, 0.0) for values in context.values),
        key_bias=lengthened(context.key_bias, length, -torch.inf),
        image_keys=context.image_keys,
        image_values=context.image_values,
        branches=context.branches,
    )


@torch.inference_mode()
def advance(run: Run, velocity: Tensor, *, estimate: bool) -> Tensor | None:
    """Moves a run one step on. With `estimate`, returns what the video would be now, [1, C, F, H, W].

    On a device nothing waits for the result: see `check_latents`.
    """
    solver, latents = need(run.solver, "solver"), need(run.latents, "latents")
    conditioning = need(run.encoded, "encoded").conditioning
    guess = conditioning.finish(solver.denoised(velocity, latents)) if estimate else None
    run.latents = solver.step(velocity, latents)
    return guess


def check_latents(run: Run) -> None:
    """Raises JobFailed when the last step gave latents that are not finite."""
    if not bool(need(run.latents, "latents").isfinite().all()):
        solver = need(run.solver, "solver")
        raise JobFailed("numerical_error", f"Step {solver.index} of {solver.total} gave numbers that are not finite.")


@torch.inference_mode()
def finished(run: Run) -> Tensor:
    """The latents to decode, [1, C, F, H, W], after the last step: the run's, or those of its reference."""
    reached = need(run.latents, "latents")
    if run.reference is not None and run.reference.phase == "decode":
        reached = run.reference.latents
    latents: Tensor = need(run.encoded, "encoded").conditioning.finish(reached)
    return latents
