"""Denoising that begins where an earlier request has been: at its last latents, or at a boundary on the way."""

from videoserve.planning.reuse import KEPT
from videoserve.video.denoise import finished
from videoserve.video.families.conditioning import Conditioning
from videoserve.video.kept import Kept, Part
from videoserve.video.load import Components
from videoserve.video.near import leave_near
from videoserve.video.run import Encoded, Run, need
from videoserve.video.step_cache import expert_at
from videoserve_cache.tiers import Away


def take_final(run: Run, components: Components, kept: Kept) -> bool:
    """Puts a fresh run behind its last step, where the same video was made with another frame rate or compression."""
    if run.plan.cache.get("verify"):
        return False
    part = kept.recall("final_latent", run)
    if part is None:
        return False
    latents, about = part.tensors["latents"], part.about
    clean = components.layout.clean_first_frame
    run.solver = components.solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=components.device)
    run.solver.index = run.solver.total
    run.encoded = Encoded(
        texts=(),
        image_embeds=None,
        # The first frame has its fixed latents already, and nothing else is asked of them any more.
        conditioning=Conditioning(fixed=latents[:, :, :1], clean_first_frame=clean),
        text_length=run.plan.text_length,
    )
    run.latents = latents
    run.flat_picture = about["flat_picture"]
    run.record.tokens, run.record.policy = about["tokens"], about["policy"]
    run.record.reuse[-1]["steps"] = about["steps"]
    _count(run, run.solver.total)
    run.whole = False
    run.stage = "decode"
    return True


def leave_final(run: Run, kept: Kept) -> None:
    """Leaves the latents of a run behind its last step; the boundaries on the way there are of use no more."""
    record = run.record
    about = {
        "flat_picture": run.flat_picture,
        "tokens": record.tokens,
        "policy": record.policy,
        "steps": record.computed,
    }
    cost_s = record.seconds.get("encode", 0.0) + record.seconds.get("denoise", 0.0)
    part = Part(tensors={"latents": finished(run)}, about=about)

    def then() -> None:
        leave_near(run, kept, cost_s)
        _forget_boundary(run, kept, run.boundary)

    kept.keep("final_latent", run, part, cost_s, place={}, then=then)


def take_boundary(run: Run, components: Components, kept: Kept) -> None:
    """Moves an encoded run, which has taken no step, to the furthest boundary that it could have come by."""
    place = furthest(run, kept)
    if place is None:
        return
    low, position = place
    part = kept.recall("boundary", run, low=low, position=position)
    if part is None:
        return
    tensors = dict(part.tensors)
    run.latents = tensors.pop("latents")
    run.solver = components.solver.restore(
        tensors, part.about["solver"], flow_shift=run.plan.flow_shift, device=components.device
    )
    run.record.reuse[-1]["steps"] = part.about["steps"]
    _count(run, position)


def leave_boundary(run: Run, kept: Kept) -> None:
    """Leaves the latents and the whole state of the solver between two steps, in place of those that came before.

    Those of the expert switch stay: another scale of guidance of the low-noise expert goes on from there.
    """
    if run.steps is not None:
        return
    solver = need(run.solver, "solver")
    low, position = solver.index > switch(run), solver.index
    prefix = kept.key("boundary", run, low=low)
    if prefix is None:
        return
    tensors, state = solver.snapshot()
    part = Part(
        tensors={**tensors, "latents": need(run.latents, "latents")},
        about={"solver": state, "steps": run.record.computed},
    )
    place = {"prefix": prefix.digest, "position": position}
    cost_s = run.record.seconds.get("denoise", 0.0)

    def then() -> None:
        _forget_boundary(run, kept, run.boundary)
        run.boundary = position

    kept.keep("boundary", run, part, cost_s, place=place, then=then, low=low, position=position)


def furthest(run: Run, kept: Kept) -> tuple[bool, int] | None:
    """Whether the low-noise expert has begun there, and the steps taken, of the furthest boundary; None without any."""
    if kept.cache is None or run.steps is not None:
        return None
    # A model of one expert never comes behind a switch.
    for low in (True, False) if run.plan.boundary is not None else (False,):
        prefix = kept.key("boundary", run, low=low)
        if prefix is None:
            return None
        try:
            positions = kept.cache.prefixes("boundary", prefix.digest)
        except Away:
            return None
        if positions:
            return low, positions[-1]
    return None


def switch(run: Run) -> int:
    """How many steps the only or the high-noise expert takes."""
    solver = need(run.solver, "solver")
    return sum(expert_at(run, timestep) == 0 for timestep in solver.timesteps)


def _forget_boundary(run: Run, kept: Kept, position: int | None) -> None:
    if position is not None and position != switch(run):
        kept.forget("boundary", run, low=position > switch(run), position=position)


def _count(run: Run, steps: int) -> None:
    """As many steps are behind the run, which it did not take itself."""
    run.record.computed = KEPT * steps
    run.record.batches = [0] * steps
