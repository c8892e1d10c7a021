"""Encode and decode of a clip by our VAE against diffusers' `AutoencoderKLWan`, the demo model's weights.

    python benchmarks/vae_vs_diffusers.py [--busy] [--rounds 7] [--size 128x128] [--frames 17]

Refuses to print a time when the results differ by more than 1e-4.
"""

import argparse

import torch
from _interleaved import add_options, pick_clock, seconds_of_each, table
from diffusers import AutoencoderKLWan
from torch import Tensor

from videoserve.planning.card import resolve_model
from videoserve.video.families.vae import WanVae

TOLERANCE = 1e-4


@torch.inference_mode()
def main() -> None:
    options = argparse.ArgumentParser()
    add_options(options, rounds=7)
    options.add_argument("--size", default="128x128", help="width x height in pixels")
    options.add_argument("--frames", type=int, default=17)
    chosen = options.parse_args()
    clock = pick_clock(chosen.busy)
    width, height = (int(side) for side in chosen.size.split("x"))

    theirs = AutoencoderKLWan.from_pretrained(resolve_model("demo") / "vae", torch_dtype=torch.float32)
    ours = WanVae(theirs)
    shape = (1, -1, 1, 1, 1)
    mean = torch.tensor(theirs.config.latents_mean).view(shape)
    scale = 1.0 / torch.tensor(theirs.config.latents_std).view(shape)
    generator = torch.Generator().manual_seed(0)
    video = torch.rand(1, 3, chosen.frames, height, width, generator=generator) * 2 - 1

    def their_encode() -> Tensor:
        return (theirs.encode(video).latent_dist.mode() - mean) * scale

    latents = their_encode()

    def their_decode() -> Tensor:
        return theirs.decode(latents / scale + mean).sample

    for name, difference in (
        ("encode", (ours.encode(video) - latents).abs().max()),
        ("decode", (ours.decode(latents) - their_decode()).abs().max()),
    ):
        if not difference <= TOLERANCE:
            raise SystemExit(f"Our {name} differs from diffusers' by {difference:.1e}: no time is worth printing.")
        print(f"{name}: largest difference from diffusers {difference:.1e}")
    print(f"{width}x{height}, {chosen.frames} frames, {torch.get_num_threads()} threads, torch {torch.__version__}")
    encode = {"diffusers encode": their_encode, "ours encode": lambda: ours.encode(video)}
    decode = {"diffusers decode": their_decode, "ours decode": lambda: ours.decode(latents)}
    taken = seconds_of_each({**encode, **decode}, chosen.rounds, clock)
    print(table({name: taken[name] for name in encode}, "diffusers encode"))
    print(table({name: taken[name] for name in decode}, "diffusers decode"))


if __name__ == "__main__":
    main()
