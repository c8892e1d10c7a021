"""A denoising step by two ranks of one thread each against one rank of one thread; the demo model, gloo on loopback.

    python benchmarks/sequence_parallel.py [--rounds 15] [--frames 17 49] [--plans cfg2 u2 u2-g2 r2]

At the largest size of the model's card, with its own number of frames and with a longer clip. A step is all that
happens between two steps of a guided job: header, latents, forward, gather, guidance and solver. Both sides run in turn
in the same process, rank 0, with the same weights; the other rank sleeps while rank 0 is alone. Refuses to print a time
when the velocities differ by more than 1e-5 of their size. Then what two processes reach that share the same forward
without a word, which is what the machine allows; and, in a process alone, what the mesh of one rank adds to a forward
whose self-attention calls the attention door itself.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _two_cores import most_of_two_cores
from _two_ranks import two_ranks
from torch import Tensor

from videoserve.config import Settings
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.storage.files import FileStore
from videoserve.types import VideoPlan
from videoserve.video.denoise import advance, predict, velocities
from videoserve.video.engine import VideoEngine
from videoserve.video.families import block
from videoserve.video.leader import Leader
from videoserve.video.load import Components
from videoserve.video.ranks import Plans
from videoserve.video.run import Run, need
from videoserve.video.warmup import default_plan, started
from videoserve_kernels.attention import attend
from videoserve_kernels.comm.plan import ParallelPlan

TOLERANCE = 1e-5
TARGET = 1.85
ADDED = 0.01


def lead(engine: VideoEngine, model: Path, chosen: argparse.Namespace) -> None:
    engine.load(warm=False)
    both = engine.components
    alone = replace(both, ranks=Leader(None, device=both.device))
    for frames in chosen.frames:
        plan = largest_plan(both, model, frames)
        print(described(plan), flush=True)
        print(
            f"{'plan':12}{'one rank ms':>13}{'two ranks ms':>14}{'ratio':>8}{'sent kB':>10}{'messages':>10}", flush=True
        )
        ratios = {name: measured(both, alone, plan, name, chosen.rounds) for name in chosen.plans}
        best = max(ratios, key=lambda name: ratios[name])
        print(f"best: {best}, {ratios[best]:.3f} times as fast as one rank; at least {TARGET} is wanted", flush=True)
    engine.close()


def measured(both: Components, alone: Components, plan: VideoPlan, name: str, rounds: int) -> float:
    """Prints a line for one plan, and returns how many times as fast two ranks are, by the median of the rounds."""
    both.ranks.begin(Plans.of(ParallelPlan.parse(name)), both.config)
    ours, theirs = (started(components, plan) for components in (both, alone))
    check(velocities(both, [ours])[0], velocities(alone, [theirs])[0])
    mesh = both.ranks.meshes.guided
    taken: dict[str, list[float]] = {"one": [], "two": []}
    for number in range(rounds + 1):
        for key, components, run in (("one", alone, theirs), ("two", both, ours)):
            mesh.counters.clear()
            seconds = step_seconds(components, run)
            if number:
                taken[key].append(seconds)
    one, two = (statistics.median(taken[key]) for key in ("one", "two"))
    sent = mesh.counters.sent()
    print(
        f"{name:12}{one * 1e3:13.2f}{two * 1e3:14.2f}{one / two:8.3f}{sent.bytes / 1e3:10.1f}{sent.messages:10}",
        flush=True,
    )
    both.ranks.drop(ours.id)
    return one / two


def step_seconds(components: Components, run: Run) -> float:
    """Seconds of one denoising step; the run starts over when its schedule has ended."""
    solver = need(run.solver, "solver")
    if solver.index == solver.total:
        run.solver = components.solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=components.device)
    began = time.perf_counter()
    advance(run, velocities(components, [run])[0], estimate=False)
    return time.perf_counter() - began


def check(ours: Tensor, truth: Tensor) -> None:
    error = float((ours - truth).norm() / truth.norm())
    if not error <= TOLERANCE:
        raise SystemExit(f"Two ranks differ from one by {error:.1e} of its size: no time is worth printing.")


def largest_plan(components: Components, model: Path, frames: int) -> VideoPlan:
    """A guided video at the largest size of the card."""
    card = ModelCard.read(model)
    width, height = max(card.sizes, key=lambda size: size[0] * size[1])
    plan = default_plan(card)
    factor, stride = components.layout.spatial_factor, components.layout.temporal_factor
    shape = (plan.latent_shape[0], (frames - 1) // stride + 1, height // factor, width // factor)
    return replace(plan, width=width, height=height, num_frames=frames, latent_shape=shape, guidance=3.0)


def described(plan: VideoPlan) -> str:
    _, frames, rows, columns = plan.latent_shape
    return (
        f"{plan.width}x{plan.height}, {plan.num_frames} frames, {frames * rows * columns // 4} tokens, guidance on, "
        f"one thread a rank, torch {torch.__version__}"
    )


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mesh: Any, *, length: int) -> Tensor:
    return attend(q, k, v)


def one_rank(data: Path, chosen: argparse.Namespace) -> None:
    """What the mesh of one rank costs: forwards in turn with and without it."""
    torch.set_num_threads(1)
    model = resolve_model("demo")
    engine = VideoEngine(Settings(data=data, device="cpu", dtype="float32"), FileStore(data / "files"), model)
    engine.load(warm=False)
    components = engine.components
    run = started(components, largest_plan(components, model, chosen.frames[0]))
    latents, solver = need(run.latents, "latents"), need(run.solver, "solver")
    mesh = components.ranks.meshes.guided

    def meshed() -> Tensor:
        return predict(components, 0, [run], latents, solver.timestep[None], mesh)

    def plain() -> Tensor:
        kept, block.attention = block.attention, plain_attention
        try:
            return meshed()
        finally:
            block.attention = kept

    ways: dict[str, Callable[[], Tensor]] = {"plain": plain, "mesh": meshed}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(2 * chosen.rounds + 1):
        for name, way in list(ways.items())[:: 1 if number % 2 else -1]:
            seconds = seconds_of(way)
            if number:
                taken[name].append(seconds)
    added = statistics.median(taken["mesh"]) / statistics.median(taken["plain"]) - 1
    print(f"one rank: {100 * added:+.2f}% against a plain forward; at most {100 * ADDED:.0f}% is wanted")


def seconds_of(way: Callable[[], Tensor]) -> float:
    """Processor time: of one thread it is the time it takes, whatever else the machine does."""
    began = time.process_time()
    way()
    return time.process_time() - began


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--frames", type=int, nargs="+", default=[17, 49])
    options.add_argument("--plans", nargs="+", default=["cfg2", "u2", "u2-g2", "r2"])
    chosen = options.parse_args()
    two_ranks(lead, chosen)
    for frames in chosen.frames:
        most = most_of_two_cores(largest_plan, frames, chosen.rounds)
        print(f"{frames} frames: two processes that never talk, a branch each, are {most:.3f} times as fast as one")
    with tempfile.TemporaryDirectory() as data:
        one_rank(Path(data), chosen)


if __name__ == "__main__":
    main()
