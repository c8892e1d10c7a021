"""A run between two steps, as one file: what it takes to go on in another process, bit for bit."""

import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from videoserve.errors import NotFound
from videoserve.storage.files import FileStore
from videoserve.types import Job
from videoserve.video.families.conditioning import Conditioning
from videoserve.video.load import Components
from videoserve.video.progress import shown
from videoserve.video.run import Before, Encoded, Record, Reference, Run, need
from videoserve.video.step_cache import begin, give_up
from videoserve_cache.steps.rebuilt import rebuilt
from videoserve_cache.steps.store import Budget, BudgetExceededError

FORMAT = "videoserve-checkpoint-2"
BEFORE = "before."
# Tensors that the solver and the step cache put back themselves.
ELSEWHERE = ("solver.", "cache.", BEFORE)


class UnusableCheckpointError(ValueError):
    """The checkpoint is missing, broken, or of something else; the message says which."""


def save_checkpoint(run: Run, components: Components, files: FileStore) -> dict[str, Any]:
    """Stores a run that has been encoded, and returns {sha256, stage, step}.

    A run whose frames are being decoded or written is kept as of its last step. ServeError when the disk is full.
    """
    solver, encoded = need(run.solver, "solver"), need(run.encoded, "encoded")
    tensors, state = solver.snapshot()
    tensors |= {f"text.{index}": text for index, text in enumerate(encoded.texts)}
    tensors |= {"latents": need(run.latents, "latents"), "fixed": encoded.conditioning.fixed}
    if encoded.image_embeds is not None:
        tensors["image_embeds"] = encoded.image_embeds
    cache, cached = cache_state(run)
    tensors |= cached
    if run.reference is not None:
        tensors["reference"] = run.reference.latents
    stage = "denoise" if solver.index < solver.total else "decode"
    about = {
        **belongs_to(run.job, components),
        "stage": stage,
        "solver": state,
        "cache": cache,
        "verifying": run.reference is not None and run.reference.phase == "denoise",
        "record": asdict(run.record),
        "flat_picture": run.flat_picture,
    }
    blob = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, {"about": json.dumps(about)})
    return {"sha256": files.put(blob), "stage": stage, "step": shown(run)[0]}


def cache_state(run: Run) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """What a step cache knows between two steps: JSON, None without one, and the tensors it names."""
    steps = run.steps if run.reference is None else run.steps or run.reference.steps
    if steps is None:
        return None, {}
    tensors, about = steps.state()
    if run.before is None:
        return {"steps": about, "before": None}, tensors
    kept, solver = run.before.solver.snapshot()
    tensors |= {f"{BEFORE}{name}": tensor for name, tensor in kept.items()}
    return {"steps": about, "before": solver}, tensors | {f"{BEFORE}latents": run.before.latents}


def restore_checkpoint(
    run: Run, checkpoint: dict[str, Any], components: Components, files: FileStore, budget: Budget
) -> None:
    """Puts a fresh run to where `checkpoint` (as returned above) says, without its step cache where the budget has no
    room for that.

    Raises UnusableCheckpointError. A run for which anything is raised is of no use, and holds nothing of the budget.
    """
    tensors, about = read_blob(checkpoint["sha256"], files)
    for name, mine in belongs_to(run.job, components).items():
        if about.get(name) != mine:
            raise UnusableCheckpointError(f"It was made for another {name}: {about.get(name)}, and this is {mine}.")
    with ExitStack() as undo:
        undo.callback(run.close)
        try:
            restore(run, tensors, about, components, budget)
        except (KeyError, TypeError, ValueError) as error:
            # Its parts are known by name, and this version has others.
            raise UnusableCheckpointError(f"Another version of the server has made it: {error}") from error
        undo.pop_all()


def restore(
    run: Run, tensors: dict[str, Tensor], about: dict[str, Any], components: Components, budget: Budget
) -> None:
    """What `save_checkpoint` has described, into a fresh run."""
    device = components.device
    kept = {name: tensor.to(device) for name, tensor in tensors.items() if not name.startswith(ELSEWHERE)}
    solver = components.solver.restore(tensors, about["solver"], flow_shift=run.plan.flow_shift, device=device)
    run.encoded = Encoded(
        texts=tuple(kept[f"text.{index}"] for index in range(2 if run.guided else 1)),
        image_embeds=kept.get("image_embeds"),
        conditioning=Conditioning(fixed=kept["fixed"], clean_first_frame=components.layout.clean_first_frame),
        text_length=run.plan.text_length,
    )
    run.latents, run.solver = kept["latents"], solver
    run.stage = about["stage"]
    run.flat_picture = about["flat_picture"]
    run.record = Record(**about["record"])
    run.record.resumed.append(solver.index)
    if about["cache"] is not None:
        try:
            restore_cache(run, about["cache"], tensors, components, budget)
        except BudgetExceededError as error:
            run.untold.append(give_up(run, str(error)))
    if "reference" in kept:
        run.reference = Reference(latents=kept["reference"], phase="denoise" if about["verifying"] else "wait")
    if run.verifying:
        need(run.reference, "reference").steps, run.steps = run.steps, None


def restore_cache(
    run: Run, about: dict[str, Any], tensors: dict[str, Tensor], components: Components, budget: Budget
) -> None:
    """The step cache with the policy it had, whatever would be chosen by now."""
    begin(run, rebuilt(need(run.record.policy, "policy")), budget, components.ranks.meshes.of(run.guided))
    need(run.steps, "steps").restore(tensors, about["steps"], components.device)
    if about["before"] is not None:
        kept = {name.removeprefix(BEFORE): tensor for name, tensor in tensors.items() if name.startswith(BEFORE)}
        solver = components.solver.restore(
            kept, about["before"], flow_shift=run.plan.flow_shift, device=components.device
        )
        run.before = Before(latents=kept["latents"].to(components.device), solver=solver)


def read_blob(sha256: str, files: FileStore) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a stored checkpoint, after checking its bytes."""
    try:
        blob = files.read(sha256)
    except NotFound:
        raise UnusableCheckpointError("It is no longer in the file store.") from None
    if hashlib.sha256(blob).hexdigest() != sha256:
        raise UnusableCheckpointError("Its bytes have changed in the file store.")
    try:
        tensors = load(blob)
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        about = json.loads(header["__metadata__"]["about"])
    except (SafetensorError, KeyError, ValueError):
        raise UnusableCheckpointError("It is not a checkpoint.") from None
    return tensors, about


def belongs_to(job: Job, components: Components) -> dict[str, str]:
    """What a checkpoint and whoever resumes from it must agree on."""
    plan = json.dumps(job.plan, sort_keys=True, separators=(",", ":"))
    return {
        "format": FORMAT,
        "job": job.id,
        "plan": hashlib.sha256(plan.encode()).hexdigest(),
        "model": components.digest,
        "configuration": components.config,
        "dtype": str(components.dtype),
    }
