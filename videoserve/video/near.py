"""Denoising that begins with the video of a similar request, where a client asks for that: approximate, class A."""

import json
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from videoserve.planning.identity import VERSION, scope_of
from videoserve.planning.reuse import NEAR, hit, missed
from videoserve.video.kept import Held, Kept
from videoserve.video.load import Components
from videoserve.video.run import Run, need
from videoserve.video.solver import Solver
from videoserve_cache.digest import digest
from videoserve_cache.tiers import Away, Key, SharedCache

# How many earlier videos of a picture are compared, the latest ones.
COMPARED = 64
# The sigma at which a video with the very same text is taken up; one as alike as was asked is taken up at 1.
CLOSEST = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """An earlier video: the key of its last latents, and the cosine between its prompt's embedding and another's."""

    final: Key
    similarity: float


def leave_near(run: Run, kept: Kept, cost_s: float) -> None:
    """Has a run, whose last latents are kept, found by those whose prompts are like its own."""
    final, text = kept.key("final_latent", run), kept.key("text_emb", run, text=run.plan.prompt)
    scope = scope_for(run, kept)
    if final is None or text is None or scope is None or kept.cache is None:
        return
    position = round(1000 * time.time())
    content = json.dumps({"final": final.digest, "text": text.digest}).encode()
    key = note_key(run, scope, position)
    kept.cache.put(key, content, about={"prefix": scope, "position": position}, cost_s=cost_s, cls="A")


def take_near(run: Run, components: Components, kept: Kept) -> list[str]:
    """Puts an encoded run, which has taken no step, on the way from the nearest earlier video; a sentence about it.

    Nothing where the client does not ask for that, and where a step cache would look at what has been left out.
    """
    least = run.plan.cache.get("near")
    if least is None or run.plan.cache.get("verify") or run.steps is not None or need(run.solver, "solver").index:
        return []
    found = nearest(run, kept)
    held = None if found is None or found.similarity < least else kept.fetch(found.final)
    if found is None or held is None:
        run.record.reuse.append(missed("final_latent"))
        return []
    steps = skipped(need(run.solver, "solver").sigmas, found.similarity, least)
    if steps == 0:
        return []
    begin(run, components, held[0], steps)
    run.record.reuse.append(entry_of(*held, found.similarity, need(run.solver, "solver"), steps))
    return [
        f"Steps 1 to {steps} are those of an earlier video, whose prompt is alike by {found.similarity:.3f}: "
        f"the result is approximate."
    ]


def entry_of(held: Held, tier: str, similarity: float, solver: Solver, steps: int) -> dict[str, Any]:
    """What the receipt says of it. Saved is the share of its steps."""
    return hit(
        "final_latent",
        cls="A",
        tier=tier,
        age_s=time.time() - held.made_at,
        size=held.part.nbytes,
        saved_s=held.cost_s * steps / solver.total,
        similarity=round(similarity, 4),
        sigma=round(solver.sigmas[steps], 4),
    )


def skipped(sigmas: tuple[float, ...], similarity: float, least: float) -> int:
    """How many steps are left out: those above the sigma at which the earlier video is taken up."""
    alike = 1.0 if least == 1 else (similarity - least) / (1 - least)
    level = 1 - (1 - CLOSEST) * min(max(alike, 0.0), 1.0)
    return min(sum(sigma > level for sigma in sigmas[:-1]), len(sigmas) - 2)


@torch.inference_mode()
def begin(run: Run, components: Components, held: Held, steps: int) -> None:
    """The earlier video under the run's own noise, as much of it as there is before that step."""
    run.solver = components.solver.start(
        run.plan.steps, flow_shift=run.plan.flow_shift, device=components.device, begin=steps
    )
    sigma, noise = run.solver.sigmas[steps], need(run.latents, "latents")
    run.latents = (1 - sigma) * held.part.tensors["latents"] + sigma * noise
    run.record.computed = NEAR * steps
    run.record.batches = [0] * steps


def nearest(run: Run, kept: Kept) -> Neighbour | None:
    """Of the latest videos of the same picture, size and model the one whose prompt is most alike."""
    scope = scope_for(run, kept)
    mine = kept.key("text_emb", run, text=run.plan.prompt)
    if kept.cache is None or scope is None or mine is None:
        return None
    try:
        positions = kept.cache.prefixes("plan", scope)[-COMPARED:]
    except Away:
        return None
    own = pooled(need(run.encoded, "encoded").texts[0])
    best: Neighbour | None = None
    for position in positions:
        note = read_note(kept.cache, note_key(run, scope, position))
        theirs = None if note is None else kept.fetch(same(mine, "text_emb", note["text"]))
        if note is None or theirs is None:
            continue
        similarity = float(own @ pooled(theirs[0].part.tensors["states"]))
        if best is None or similarity >= best.similarity:
            best = Neighbour(final=same(mine, "final_latent", note["final"]), similarity=similarity)
    return best


def pooled(states: Tensor) -> Tensor:
    """The direction of a text's mean state: [n, C] to [C], float32, of length 1."""
    return torch.nn.functional.normalize(states.float().mean(dim=0), dim=0)


def scope_for(run: Run, kept: Kept) -> str | None:
    return None if kept.maker is None else scope_of(run.job.plan, kept.maker, run.job.tenant)


def note_key(run: Run, scope: str, position: int) -> Key:
    name = digest("note", VERSION, [scope, position])
    return Key(kind="plan", digest=name, tenant=run.job.tenant, model=run.plan.model)


def same(key: Key, kind: str, name: str) -> Key:
    """Another entry of the same client and model."""
    return Key(kind=kind, digest=name, tenant=key.tenant, model=key.model)


def read_note(cache: SharedCache, key: Key) -> dict[str, str] | None:
    found = cache.get(key)
    if found is None:
        return None
    with found:
        note: dict[str, str] = json.loads(bytes(found.content))
    return note
