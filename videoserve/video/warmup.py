"""One generation before the first client: everything is allocated, compiled and measured after it."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from videoserve.planning.card import ModelCard
from videoserve.planning.plan import plan_video, shape_key
from videoserve.storage.files import FileStore
from videoserve.types import Job, VideoPlan, VideoRequest
from videoserve.video.decode import decode
from videoserve.video.denoise import advance, finished, velocities
from videoserve.video.digest import text_digest
from videoserve.video.encode import draw_noise, encode
from videoserve.video.environment import Environment
from videoserve.video.load import Components
from videoserve.video.memory import out_of_memory, release
from videoserve.video.progress import Costs
from videoserve.video.run import Run
from videoserve.video.write import write

T = TypeVar("T")

# Texts of different lengths: company must not change what a job gets.
PROMPTS = ("zoom in", "the camera pans slowly to the left across a very wide valley with snow on all of its hills")
# A shared forward must save this part of the time of one after the other.
GAIN = 0.05
LARGEST = 8
STEPS = 2
REPEATS = 3
# Seconds below which a single measurement is noise.
SHORT = 2.0


def warm_up(components: Components, card: ModelCard, costs: Costs, batch: int) -> dict[str, int]:
    """Generates at the default shape and files what it took in `costs`.

    Returns how many jobs of a shape may share a forward, by shape key: with `batch` 0 as many as were measured to be
    faster together and to come out the same to the last bit.
    """
    plan = default_plan(card)
    key = shape_key(plan)
    first = started(components, replace(plan, prompt=PROMPTS[0]), "warm-up 1")
    # The second one: the first pays for what is done once in a process.
    second, seconds = timed(components, lambda: started(components, replace(plan, prompt=PROMPTS[1]), "warm-up 2"))
    runs = [first, second]
    costs.record(key, "encode", seconds)
    for _ in range(STEPS):
        rows, seconds = timed(components, lambda: velocities(components, runs[:1]))
        advance(runs[0], rows[0], estimate=False)
    costs.record(key, "step", seconds)
    frames, seconds = settled(components, lambda: drawn(components, runs[0]))
    costs.record(key, "decode", seconds)
    with TemporaryDirectory() as folder:
        _, seconds = settled(components, lambda: write(frames, plan, FileStore(Path(folder))))
    costs.record(key, "write", seconds)
    limits = {key: best_batch(components, runs) if batch == 0 else batch}
    for run in runs:
        components.ranks.drop(run.id)
    components.ranks.rest()
    return limits


def drawn(components: Components, run: Run) -> NDArray[np.uint8]:
    """The frames of a run."""
    return np.concatenate(list(decode(components, finished(run), run.id)))


def warmth_key(components: Components, environment: Environment, batch: int) -> str:
    """What the measurements of a warm-up depend on: model, device, versions, threads, the ranks' plans, `batch`."""
    plans = components.ranks.meshes.plans
    about = {
        "warm-up": 1,
        "model": [components.digest, components.config],
        "environment": environment.to_dict(),
        "plans": [plans.guided.name, plans.plain.name],
        "batch": batch,
    }
    return f"warm-up {text_digest(json.dumps(about, sort_keys=True))}"


def default_plan(card: ModelCard) -> VideoPlan:
    """What a request that says nothing gets; a wide picture where the model has no sizes of its own."""
    last = "none" if card.last_image == "required" else None
    request = VideoRequest(prompt="", image="none", last_image=last, seed=0)
    size = card.sizes[0] if card.sizes else (1600, 900)
    return plan_video(request, card, size, random_seed=0)


def started(components: Components, plan: VideoPlan, name: str = "warm-up") -> Run:
    """A run of no one's, encoded, of a grey picture."""
    run = Run(job=Job(id=name, kind="video", tenant="", request={}, plan={}, created_at=0.0), plan=plan, rank=0.0)
    grey = np.full((plan.height, plan.width, 3), 128, np.uint8)
    run.encoded, _ = encode(components, plan, grey, None if plan.last_image is None else grey)
    run.latents = draw_noise(plan, components.device)
    run.solver = components.solver.start(plan.steps, flow_shift=plan.flow_shift, device=components.device)
    run.stage = "denoise"
    return run


def best_batch(components: Components, runs: Sequence[Run]) -> int:
    """How many jobs to put into one forward: doubled while that saves GAIN of the time per job and no bit changes."""
    alone = [velocities(components, [run])[0] for run in runs]
    per_job = fastest(components, lambda: velocities(components, runs[:1]))
    best, size = 1, len(runs)
    while size <= LARGEST:
        seconds = seconds_in_company(components, [runs[index % len(runs)] for index in range(size)], alone)
        if seconds is None or seconds > (1 - GAIN) * per_job:
            break
        best, per_job, size = size, seconds, 2 * size
    release(components.device)
    return best


def seconds_in_company(components: Components, company: Sequence[Run], alone: Sequence[Tensor]) -> float | None:
    """Seconds per job of a shared forward; None when it does not fit into memory or gives a job other bits.

    `alone` are the velocities of the runs that `company` repeats.
    """
    try:
        together = velocities(components, company)
        seconds = fastest(components, lambda: velocities(components, company))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return None
    equal = all(torch.equal(mine, alone[index % len(alone)]) for index, mine in enumerate(together))
    return seconds / len(company) if equal else None


def timed(components: Components, work: Callable[[], T]) -> tuple[T, float]:
    """The result and the seconds, with the device's queue empty at both ends."""
    synchronize(components)
    began = time.perf_counter()
    result = work()
    synchronize(components)
    return result, time.perf_counter() - began


def settled(components: Components, work: Callable[[], T]) -> tuple[T, float]:
    """The same for work done a second time, where the first was short enough to be mostly first-time costs."""
    result, seconds = timed(components, work)
    return timed(components, work) if seconds < SHORT else (result, seconds)


def fastest(components: Components, work: Callable[[], object]) -> float:
    """The least seconds of some repetitions; one is enough for long work."""
    seconds = [timed(components, work)[1]]
    while len(seconds) < REPEATS and seconds[0] < SHORT:
        seconds.append(timed(components, work)[1])
    return min(seconds)


def synchronize(components: Components) -> None:
    if components.device.type == "cuda":
        torch.cuda.synchronize(components.device)
