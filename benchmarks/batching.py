"""Two jobs that share their forwards against the same two one after the other; the demo model, denoising alone.

    python benchmarks/batching.py [--rounds 5] [--steps 10] [--jobs 2] [--guidance 3] [--busy]

The jobs differ in picture seed and prompt. Refuses to print a time when a job's latents differ by more than 1e-4 from
those it has alone; says whether they are the same to the last bit.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from _interleaved import add_options, pick_clock, seconds_of_each, table
from torch import Tensor

from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.types import VideoPlan, VideoRequest
from videoserve.video.denoise import advance, finished, velocities
from videoserve.video.digest import DigestMemo
from videoserve.video.leader import Leader
from videoserve.video.load import Components, load_components
from videoserve.video.quiet import quiet
from videoserve.video.run import Run
from videoserve.video.warmup import started

TOLERANCE = 1e-4
PROMPTS = ("the camera pans slowly to the left", "zoom in", "rotate clockwise, fast", "tilt up")


def denoised(components: Components, runs: list[Run]) -> list[Tensor]:
    """The finished latents of runs that take every step together."""
    for _ in range(runs[0].plan.steps):
        for run, velocity in zip(runs, velocities(components, runs), strict=True):
            advance(run, velocity, estimate=False)
    return [finished(run) for run in runs]


def fresh(components: Components, plans: list[VideoPlan]) -> list[Run]:
    return [started(components, plan) for plan in plans]


def one_by_one(components: Components, plans: list[VideoPlan]) -> list[Tensor]:
    return [denoised(components, [run])[0] for run in fresh(components, plans)]


def together(components: Components, plans: list[VideoPlan]) -> list[Tensor]:
    return denoised(components, fresh(components, plans))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--guidance", type=float, default=3.0)
    asked = parser.parse_args()
    clock = pick_clock(asked.busy)
    quiet()
    model = resolve_model("demo")
    card = ModelCard.read(model)
    with tempfile.TemporaryDirectory() as data:
        memo = DigestMemo(Path(data) / "digests.json")
        device = torch.device("cpu")
        alone = Leader(None, device=device)
        components = load_components(model, device=device, dtype=torch.float32, memo=memo, ranks=alone)
    request = VideoRequest(prompt="", image="", num_inference_steps=asked.steps, guidance_scale=asked.guidance)
    plan = plan_video(request, card, card.sizes[0], random_seed=0)
    plans = [replace(plan, seed=seed, prompt=PROMPTS[seed % len(PROMPTS)]) for seed in range(asked.jobs)]
    pairs = zip(together(components, plans), one_by_one(components, plans), strict=True)
    worst = max(float((mine - alone).abs().max()) for mine, alone in pairs)
    if not worst <= TOLERANCE:
        sys.exit(f"Jobs that share differ by {worst:.1e} from the same jobs alone: no time is worth printing.")
    same = "the same to the last bit" if worst == 0 else f"equal within {worst:.1e}"
    print(f"{asked.jobs} jobs of {plan.width}x{plan.height}x{plan.num_frames}, {asked.steps} steps, {same}")
    print(f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, torch {torch.__version__}\n")
    taken = seconds_of_each(
        {
            "one after the other": lambda: one_by_one(components, plans),
            f"{asked.jobs} together": lambda: together(components, plans),
        },
        asked.rounds,
        clock,
    )
    print(table(taken, "one after the other"))


if __name__ == "__main__":
    main()
