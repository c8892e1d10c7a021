"""Latents of rendered clips: a store that grows while the DiT trains, so that it keeps seeing new clips."""

import random
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan

from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.checkpoint import save
from videoserve.demo.recipe.clips import render
from videoserve.demo.recipe.motions import Label, path_of, sample_label
from videoserve.demo.recipe.vae_net import encode

Shape = tuple[int, int]


class Reservoir:
    """Normalised latents (float16) and labels by shape (height, width) in pixels."""

    def __init__(self, vae: AutoencoderKLWan, bank: Bank, rng: random.Random) -> None:
        self.vae, self.bank, self.rng = vae, bank, rng
        mean, std = vae.config.latents_mean, vae.config.latents_std
        self.mean = torch.tensor(mean).view(1, -1, 1, 1, 1)
        self.std = torch.tensor(std).view(1, -1, 1, 1, 1)
        self.clips: dict[Shape, list[tuple[torch.Tensor, Label]]] = {}

    @torch.no_grad()
    def add(self, shape: Shape) -> None:
        """Film, encode and keep one more clip."""
        label = sample_label(self.rng)
        clip = render(self.bank.pick(self.rng), *shape, path_of(label, self.rng), self.rng)
        latents = (encode(self.vae, clip[None] * 2 - 1) - self.mean) / self.std
        self.clips.setdefault(shape, []).append((latents[0].half(), label))

    def draw(self, shape: Shape, count: int) -> tuple[torch.Tensor, list[Label]]:
        """(latents [count, C, F, H, W], labels), drawn with replacement."""
        chosen = self.rng.choices(self.clips[shape], k=count)
        return torch.stack([latents for latents, _ in chosen]).float(), [label for _, label in chosen]

    def save(self, file: Path) -> None:
        """Keep the clips for a later run."""
        save(file, clips=self.clips)

    def load(self, file: Path) -> None:
        """Take the clips of an earlier run with the same VAE."""
        state: dict[str, Any] = torch.load(file, weights_only=False)
        self.clips = state["clips"]
