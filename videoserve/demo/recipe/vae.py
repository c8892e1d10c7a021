"""Train the VAE on rendered clips: WORK/vae.pt.

python -m videoserve.demo.recipe.vae --work WORK --minutes 60 [--resume] [--decay 0.5]

Minutes are CPU minutes of one process, so that a paused or crowded machine changes nothing. The rate is constant and
falls to zero over the last `decay` of the run; a finished run can be resumed for another.
"""

import argparse
import math
import random
import sys
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan

from videoserve.demo.recipe import processes
from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.checkpoint import save
from videoserve.demo.recipe.clips import render
from videoserve.demo.recipe.motions import path_of, sample_label
from videoserve.demo.recipe.muon import Muon
from videoserve.demo.recipe.vae_net import decode, encode, new_vae
from videoserve.demo.recipe.vae_start import start
from videoserve.demo.recipe.work import work_folder

# Clips of one step and process: (how many, frames, side), and how often that shape is drawn.
SHAPES = ((2, 17, 64), (4, 9, 64), (1, 17, 96), (16, 1, 64))
SHAPE_WEIGHTS = (4, 4, 2, 1)
START_CLIPS = 40
# The decoder learns to live with latents that are a little wrong, as the DiT's are.
LATENT_NOISE = (0.0, 0.03, 0.1)
CLIP_NORM = 1.0
REPORT_EVERY = 20
CHECK_EVERY = 40


def training_batch(bank: Bank, rng: random.Random, shape: tuple[int, int, int]) -> torch.Tensor:
    """Clips [B, 3, F, H, W] in -1..1, filmed from as near as 128-pixel clips of the whole picture are."""
    count, frames, side = shape
    share = (0.12 * side / 64, min(0.97, 0.6 * side / 64))
    clips = [
        render(bank.pick(rng), side, side, path_of(sample_label(rng), rng), rng, frames=frames, share=share)
        for _ in range(count)
    ]
    return (torch.stack(clips) * 2 - 1).contiguous(memory_format=torch.channels_last_3d)


def held_out_clips(work: Path) -> torch.Tensor:
    """One 128 x 128 clip of each held-out picture, always the same: [B, 3, 17, 128, 128] in -1..1."""
    rng = random.Random(5)
    clips = [
        render(picture, 128, 128, path_of(sample_label(rng), rng), rng, share=(0.6, 0.95), colours=False)
        for picture in Bank(work, "held-out").pyramids
    ]
    return torch.stack(clips) * 2 - 1


def decibels(ours: torch.Tensor, true: torch.Tensor) -> float:
    """PSNR of values in -1..1."""
    return 10 * math.log10(4 / (ours - true).square().mean().item())


@torch.no_grad()
def held_out_psnr(vae: AutoencoderKLWan, clips: torch.Tensor) -> float:
    """Mean over clips of the PSNR of decode(encode(clip))."""
    ours = [decode(vae, encode(vae, clip[None])).clamp(-1, 1) for clip in clips]
    return sum(decibels(out[0], clip) for out, clip in zip(ours, clips, strict=True)) / len(clips)


def split_parameters(vae: AutoencoderKLWan) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """(kernels for Muon, the rest for Adam), of what decode(encode(x)) uses."""
    kernels: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in vae.named_parameters():
        inner = parameter.ndim >= 4 and not any(part in name for part in ("conv_in", "conv_out", "quant"))
        (kernels if inner else rest).append(parameter)
    return kernels, rest


def loss_of(vae: AutoencoderKLWan, clips: torch.Tensor, noise: float) -> tuple[torch.Tensor, float]:
    """(loss, plain mean square error)."""
    latents = encode(vae, clips)
    error = decode(vae, latents + torch.randn_like(latents) * noise) - clips
    square = error.square().mean()
    slope = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return 10 * square + error.abs().mean() + 0.1 * slope, square.item()


def train(work: Path, arguments: argparse.Namespace) -> None:
    """One process of the training."""
    processes.join(arguments.rank, arguments.world, arguments.rendezvous)
    rng = random.Random(arguments.seed * 1000 + arguments.rank)
    shapes = random.Random(arguments.seed)
    torch.manual_seed(arguments.seed * 1000 + arguments.rank)
    bank = Bank(work, "train")
    vae, mean = new_vae(), new_vae()
    kernels, rest = split_parameters(vae)
    optimiser = Muon(kernels, rest, rates=(arguments.muon, arguments.adam))
    file = work / "vae.pt"
    if arguments.resume:
        state = torch.load(file)
        vae.load_state_dict(state["raw"])
        mean.load_state_dict(state["mean"])
        optimiser.load(state["optimiser"])
    else:
        if arguments.rank == 0:
            start(vae, training_batch(bank, rng, (START_CLIPS, 17, 64)))
        processes.share_weights(vae)
        mean.load_state_dict(vae.state_dict())
    clips = held_out_clips(work)[::2] if arguments.rank == 0 else torch.empty(0)
    if arguments.rank == 0:
        print(f"held out before: {held_out_psnr(mean, clips):.2f} dB", flush=True)
    begun, wall, step, squares = time.process_time(), time.time(), 0, [0.0][:0]
    while True:
        done = processes.agree((time.process_time() - begun) / 60 / arguments.minutes)
        if done >= 1:
            break
        shape = shapes.choices(SHAPES, SHAPE_WEIGHTS)[0]
        loss, square = loss_of(vae, training_batch(bank, rng, shape), shapes.choice(LATENT_NOISE))
        vae.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        processes.average_gradients(vae.parameters(), CLIP_NORM)
        warm = min(1.0, (step + 1) / 20)
        optimiser.step(warm * min(1.0, (1 - done) / arguments.decay))
        step += 1
        with torch.no_grad():
            keep = min(0.99, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(mean.parameters()), list(vae.parameters()), 1 - keep)
        squares.append(square)
        if arguments.rank == 0 and step % REPORT_EVERY == 0:
            psnr = 10 * math.log10(4 / (sum(squares) / len(squares)))
            squares = []
            print(f"{time.time() - wall:.0f} s, step {step}, {done:.0%}: training {psnr:.2f} dB", flush=True)
        if arguments.rank == 0 and step % CHECK_EVERY == 0:
            print(f"  held out {held_out_psnr(mean, clips):.2f} dB", flush=True)
            save(file, raw=vae.state_dict(), mean=mean.state_dict(), optimiser=optimiser.state())
    if arguments.rank == 0:
        save(file, raw=vae.state_dict(), mean=mean.state_dict(), optimiser=optimiser.state())
        print(f"held out, all: {held_out_psnr(mean, held_out_clips(work)):.2f} dB after {step} steps", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of this stage."""
    parser.add_argument("--minutes", type=float, default=60, help="CPU minutes of one process")
    parser.add_argument("--decay", type=float, default=0.5, help="share of the run over which the rate falls to zero")
    parser.add_argument("--muon", type=float, default=0.001, help="learning rate of the kernels")
    parser.add_argument("--adam", type=float, default=1e-4, help="learning rate of the rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)


def main() -> None:
    """Start the processes, or be one of them."""
    work, arguments = work_folder(__doc__, add_arguments)
    if arguments.rank is None:
        processes.launch("videoserve.demo.recipe.vae", sys.argv[1:], work, arguments.processes)
    else:
        train(work, arguments)


if __name__ == "__main__":
    main()
