"""Held-out figures of a model: does it move as asked, how close is it to the true warp, how good is its VAE?

python -m videoserve.demo.recipe.evaluate --work WORK [--model DIRECTORY] [--every 6] [--guidance 1.5] [--sheet FILE]

Every trial goes through diffusers' own pipeline: one of 15 held-out pictures, one of 24 hand-written prompts, a seed.
All 720 take more than an hour on two cores; --every N takes each N-th of them, the same ones for every model.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from diffusers import WanImageToVideoPipeline
from numpy.typing import NDArray
from PIL import Image

from videoserve.demo.motion import matches, measure_motion
from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.clips import warp
from videoserve.demo.recipe.dit import SHIPPED
from videoserve.demo.recipe.motions import FRAMES, Label, path_of
from videoserve.demo.recipe.paraphrases import PARAPHRASES
from videoserve.demo.recipe.sheet import write_sheet
from videoserve.demo.recipe.vae import held_out_clips, held_out_psnr
from videoserve.demo.recipe.work import work_folder

SIDE = 128
SEEDS = 2
TEXT_LENGTH = 64
SHEET_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one clip showed: psnr in dB against the true warp where the first frame shows what belongs there."""

    picture: str
    prompt: str
    kind: str
    seed: int
    right: bool
    seen: str
    strength: list[float]
    psnr: float
    seconds: float


def square(picture: torch.Tensor) -> Image.Image:
    """The middle of a picture uint8 [3, H, W], scaled to SIDE x SIDE."""
    height, width = picture.shape[1:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    middle = picture[:, top : top + side, left : left + side].permute(1, 2, 0).numpy()
    return Image.fromarray(middle).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def plan(every: int, part: int) -> Iterator[tuple[int, int, int]]:
    """(picture, prompt, seed) of each `every`-th trial from the `part`-th, spread over the pictures and the prompts."""
    for picture, prompt, seed in itertools.product(range(15), range(len(PARAPHRASES)), range(SEEDS)):
        if (prompt + 5 * picture + 3 * seed) % every == part:
            yield picture, prompt, seed


def against_warp(frames: NDArray[np.uint8], image: Image.Image, label: Label) -> tuple[float, torch.Tensor]:
    """(PSNR in dB of frames 1.. on the pixels that the picture shows, the true clip [3, F, H, W])."""
    first = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    true, seen = warp(first, path_of(label))
    ours = torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 255
    error = ((ours - true).square() * seen)[:, 1:].sum() / (3 * seen[1:].sum())
    return -10 * math.log10(error.item()), true


def judge(pipeline: Any, image: Image.Image, name: str, prompt: str, label: Label, seed: int, options: Any) -> Any:
    """Make one clip and look at it: (Trial, frames, true clip)."""
    begun = time.time()
    out = pipeline(
        image=image,
        prompt=prompt,
        height=SIDE,
        width=SIDE,
        num_frames=FRAMES,
        num_inference_steps=options.steps,
        guidance_scale=options.guidance,
        max_sequence_length=TEXT_LENGTH,
        generator=torch.Generator().manual_seed(seed),
        output_type="np",
    ).frames[0]
    seconds = time.time() - begun
    frames = (out * 255).round().astype(np.uint8)
    motion = measure_motion(frames)
    psnr, true = against_warp(frames, image, label)
    trial = Trial(
        picture=name,
        prompt=prompt,
        kind=label.kind,
        seed=seed,
        right=matches(prompt, motion),
        seen=motion.words,
        strength=[round(part, 3) for part in motion.strength.tolist()],
        psnr=psnr,
        seconds=seconds,
    )
    return trial, frames, true


def report(trials: list[Trial]) -> str:
    """A table of the figures by kind of motion."""
    lines = []
    groups = [(kind, [trial for trial in trials if trial.kind == kind]) for kind in sorted({t.kind for t in trials})]
    for kind, group in [*groups, ("all", trials)]:
        right = sum(trial.right for trial in group)
        lines.append(f"{kind:16} direction {right}/{len(group)}  {fmean(trial.psnr for trial in group):.2f} dB")
    wrong = [f"  {t.picture}: {t.prompt!r} seed {t.seed} was {t.seen}" for t in trials if not t.right]
    return "\n".join([*lines, "wrong:" if wrong else "none wrong", *wrong])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--model", type=Path, default=SHIPPED, help="diffusers directory")
    parser.add_argument("--vae", action=argparse.BooleanOptionalAction, default=True, help="measure the VAE too")
    parser.add_argument("--every", type=int, default=1, help="take each N-th trial")
    parser.add_argument("--part", type=int, default=0, help="which of the N: two processes share the work that way")
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--sheet", type=Path, help="write a contact sheet of the first trials")
    parser.add_argument("--out", type=Path, help="write every trial as JSON")


def main() -> None:
    """Print the figures."""
    work, options = work_folder(__doc__, add_arguments)
    bank = Bank(work, "held-out")
    images = [square(picture[0]) for picture in bank.pyramids]
    pipeline = WanImageToVideoPipeline.from_pretrained(options.model, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    if options.vae:
        psnr = held_out_psnr(pipeline.vae, held_out_clips(work))
        print(f"VAE: {psnr:.2f} dB on {len(images)} held-out clips", flush=True)
    trials: list[Trial] = []
    rows: list[tuple[str, NDArray[np.uint8], torch.Tensor]] = []
    for picture, text, seed in plan(options.every, options.part):
        prompt, label = PARAPHRASES[text]
        trial, frames, true = judge(pipeline, images[picture], bank.names[picture], prompt, label, seed, options)
        trials.append(trial)
        if options.out:
            options.out.write_text(json.dumps([asdict(trial) for trial in trials], indent=1))
        if len(rows) < SHEET_ROWS and options.sheet:
            rows.append((f"{prompt} | {trial.seen} | {trial.psnr:.1f} dB", frames, true))
            write_sheet(options.sheet, rows)
    print(report(trials))
    print(f"{fmean(trial.seconds for trial in trials):.2f} s a clip")


if __name__ == "__main__":
    main()
