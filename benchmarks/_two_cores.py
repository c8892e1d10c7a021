"""What two cores of this machine can do at once: forwards of one guidance branch in two processes that never talk."""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from videoserve.config import Settings
from videoserve.planning.card import resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import VideoPlan
from videoserve.video.denoise import predict
from videoserve.video.engine import VideoEngine
from videoserve.video.load import Components
from videoserve.video.run import need
from videoserve.video.warmup import started

Largest = Callable[[Components, Path, int], VideoPlan]


def most_of_two_cores(largest: Largest, frames: int, rounds: int) -> float:
    """How many times as fast two processes are that share a guided forward without a word, by medians: no plan for
    ranks that splits the branches can be faster here."""
    context = multiprocessing.get_context("spawn")
    barrier, told = context.Barrier(2), context.Queue()
    with tempfile.TemporaryDirectory() as data:
        ends = [
            context.Process(target=_end, args=(number, Path(data), largest, frames, rounds, barrier, told))
            for number in range(2)
        ]
        for end in ends:
            end.start()
        halves = dict(told.get(timeout=600) for _ in ends)
        for end in ends:
            end.join()
    slower = [max(times) for times in zip(*(halves[number]["beside"] for number in range(2)), strict=True)]
    return statistics.median(halves[0]["alone"]) / statistics.median(slower)


def _end(number: int, data: Path, largest: Largest, frames: int, rounds: int, barrier: Any, told: Any) -> None:
    torch.set_num_threads(1)
    model = resolve_model("demo")
    settings = Settings(data=data / str(number), device="cpu", dtype="float32")
    engine = VideoEngine(settings, FileStore(settings.data / "files"), model)
    engine.load(warm=False)
    plan = largest(engine.components, model, frames)
    both, one = (forward_of(engine.components, replace(plan, guidance=scale)) for scale in (plan.guidance, 1.0))
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds + 1):
        barrier.wait()
        if number == 0:
            alone.append(seconds_of(both))
        barrier.wait()
        beside.append(seconds_of(one))
    told.put((number, {"alone": alone[1:], "beside": beside[1:]}))
    engine.close()


def forward_of(components: Components, plan: VideoPlan) -> Callable[[], object]:
    run = started(components, plan)
    latents, timestep = need(run.latents, "latents"), need(run.solver, "solver").timestep[None]
    meshes = components.ranks.meshes
    return lambda: predict(components, 0, [run], latents, timestep, meshes.of(run.guided))


def seconds_of(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began
