"""The uncached video beside a cached one: computed after it, compared with it, and let go."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from videoserve.media.fidelity import fidelity
from videoserve.video.encode import draw_noise
from videoserve.video.load import Components
from videoserve.video.run import Reference, Run, need
from videoserve_cache.steps.context import Decision


def wanted(run: Run) -> bool:
    """Whether a run that has taken its last step is to be compared, and differs from the uncached one at all."""
    return bool(run.plan.cache.get("verify")) and Decision.SKIP in run.record.computed


def begin_reference(run: Run, components: Components) -> None:
    """Puts a run that has taken its last step back to its noise, to compute every step."""
    device = components.device
    run.reference = Reference(latents=need(run.latents, "latents"), steps=run.steps)
    run.steps = None
    run.latents = draw_noise(run.plan, device)
    run.solver = components.solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=device)


def end_reference(run: Run) -> None:
    """After the last step of the reference: the run is the cached video again, with the reference's latents beside."""
    reference = need(run.reference, "reference")
    run.steps, reference.steps = reference.steps, None
    run.latents, reference.latents = reference.latents, need(run.latents, "latents")
    reference.phase = "wait"


def drawn(run: Run, frames: NDArray[np.uint8]) -> bool:
    """Takes the frames [F, H, W, 3] of a run or, after those, of its reference; whether there is nothing to draw."""
    if run.reference is None:
        run.frames = frames
        return True
    if run.frames is None:
        run.frames = frames
        run.reference.phase = "decode"
        return False
    run.record.fidelity = compared(run, frames)
    run.reference = None
    return True


def compared(run: Run, frames: NDArray[np.uint8]) -> dict[str, Any]:
    """Latents before the VAE, and frames before any codec; JSON."""
    latents = need(run.reference, "reference").latents
    return {
        "latents_relative_l2": distance(need(run.latents, "latents"), latents),
        **fidelity(need(run.frames, "frames"), frames).to_dict(),
    }


@torch.inference_mode()
def distance(latents: Tensor, reference: Tensor) -> float:
    """|latents - reference| / |reference|."""
    reference = reference.double()
    return float((latents.double() - reference).norm() / reference.norm())
