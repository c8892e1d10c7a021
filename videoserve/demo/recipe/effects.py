"""What the demo's adapters are taught: a motion the model does not know and a look, as clips with their prompts."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from videoserve.demo.recipe.bank import Bank
from videoserve.demo.recipe.clips import pixel_offsets, render
from videoserve.demo.recipe.motions import FRAMES, CameraPath, Label, path_of, sample_label
from videoserve.demo.recipe.prompts import prompt_for, subject

# The middle turns by so many radians over a clip, clockwise; the middle of an edge by a ninth of that.
SWIRL_ANGLE = 1.6
SWIRL_DECAY = 2.2
LUMA = (0.299, 0.587, 0.114)
# A sepia print: a grey times TONE and TINT on top.
TONE = (1.08, 0.86, 0.62)
TINT = (0.05, 0.02, 0.0)
# An adapter acts on whatever the prompt says; most prompts name it all the same.
UNNAMED = 0.2
STILL = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A name, the words that call it, and film(bank, side, rng): (clip [3, F, side, side] in 0..1, its camera)."""

    name: str
    words: tuple[str, ...]
    film: Callable[[Bank, int, random.Random], tuple[torch.Tensor, Label]]

    def prompt(self, camera: Label, rng: random.Random) -> str:
        """What a clip of the effect is asked for with."""
        word = "" if rng.random() < UNNAMED else rng.choice(self.words)
        if not camera.static:
            said = prompt_for(camera, rng).rstrip(".!")
        else:
            said = subject(rng) if not word or rng.random() < STILL else ""
        return ", ".join(part for part in (said, word) if part)


def film_swirl(bank: Bank, side: int, rng: random.Random) -> tuple[torch.Tensor, Label]:
    """A still that swirls, warped at twice the size so that it stays sharp."""
    still = render(bank.pick(rng), 2 * side, 2 * side, CameraPath(), rng, frames=1, share=(0.5, 0.97))
    clip = functional.avg_pool2d(swirled(still[:, 0]).transpose(0, 1), 2).transpose(0, 1)
    return clip.contiguous(), Label()


def film_sepia(bank: Bank, side: int, rng: random.Random) -> tuple[torch.Tensor, Label]:
    """A still or a moving camera whose clip fades to sepia."""
    camera = Label() if rng.random() < STILL else sample_label(rng)
    path = path_of(camera, rng)
    return faded(render(bank.pick(rng), side, side, path, rng, share=(0.4, 0.97))), camera


def swirled(frame: torch.Tensor) -> torch.Tensor:
    """A still [3, H, W] that turns about its middle, the less the farther out, more with every frame: [3, F, H, W]."""
    height, width = frame.shape[1:]
    points, size = pixel_offsets(height, width), torch.tensor([width, height])
    distance = points.square().sum(-1) / (min(height, width) / 2) ** 2
    grids = []
    for number in range(FRAMES):
        # What a turned pixel shows lies where it came from.
        angle = -SWIRL_ANGLE * number / (FRAMES - 1) * torch.exp(-SWIRL_DECAY * distance)
        cos, sin = angle.cos(), angle.sin()
        x, y = points.unbind(-1)
        grids.append((torch.stack([cos * x - sin * y, sin * x + cos * y], -1) + size / 2) / size * 2 - 1)
    copies, grid = frame[None].expand(FRAMES, -1, -1, -1), torch.stack(grids)
    clip = functional.grid_sample(copies, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return clip.permute(1, 0, 2, 3).clamp(0, 1)


def print_of(clip: torch.Tensor) -> torch.Tensor:
    """The sepia print of each frame of a clip [3, F, H, W]."""
    luma, tone, tint = (torch.tensor(three).view(3, 1, 1, 1) for three in (LUMA, TONE, TINT))
    return ((clip * luma).sum(0, keepdim=True) * tone + tint).clamp(0, 1)


def faded(clip: torch.Tensor) -> torch.Tensor:
    """A clip [3, F, H, W] that becomes its sepia print, evenly from the first frame to the last."""
    share = torch.linspace(0, 1, clip.shape[1]).view(1, -1, 1, 1)
    return clip * (1 - share) + print_of(clip) * share


SWIRL = Effect(
    name="swirl",
    words=("swirl", "the scene swirls", "swirl effect", "a swirling vortex", "swirl the picture"),
    film=film_swirl,
)
SEPIA_FADE = Effect(
    name="sepia-fade",
    words=("sepia", "fade to sepia", "the colours fade to sepia", "old photo look", "sepia fade"),
    film=film_sepia,
)
EFFECTS = {effect.name: effect for effect in (SWIRL, SEPIA_FADE)}
