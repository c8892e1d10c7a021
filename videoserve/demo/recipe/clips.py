"""Clips of a moving camera, rendered by warping a picture: what the VAE and the DiT learn from."""

import math
import random

import numpy as np
import torch
from torch.nn import functional

from videoserve.demo.recipe.bank import Pyramid
from videoserve.demo.recipe.motions import FRAMES, CameraPath, affines

# Pixels around the box a path needs, for the bicubic taps.
MARGIN = 6


def photometric(picture: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Random colours of a picture [3, H, W] in 0..1: channel order, saturation, contrast, brightness, gamma."""
    if rng.random() < 0.15:
        picture = picture[torch.tensor(rng.sample([0, 1, 2], 3))]
    if rng.random() < 0.7:
        grey = picture.mean(0, keepdim=True)
        picture = grey + (picture - grey) * rng.uniform(0.5, 1.5)
        mean = picture.mean()
        picture = (picture - mean) * rng.uniform(0.7, 1.3) + mean + rng.uniform(-0.12, 0.12)
        picture = picture.clamp(0, 1) ** rng.uniform(0.75, 1.35)
    return picture.clamp(0, 1)


def render(
    levels: Pyramid,
    height: int,
    width: int,
    path: CameraPath,
    rng: random.Random,
    *,
    frames: int = FRAMES,
    share: tuple[float, float] = (0.35, 0.97),
    colours: bool = True,
) -> torch.Tensor:
    """Film a picture along a path: float [3, F, H, W] in 0..1.

    The first frame shows a crop whose side is a random `share` of the largest that fits, smaller when the path would
    otherwise leave the picture. Whatever still lies outside is mirrored.
    """
    photo_height, photo_width = levels[0].shape[1:]
    steps = affines(path, frames)
    corners = np.array([[x * width / 2, y * height / 2] for x in (-1, 1) for y in (-1, 1)])
    reach = np.concatenate([corners @ matrix.T + shift for matrix, shift in steps])
    low, high = reach.min(0), reach.max(0)
    # Picture pixels per clip pixel.
    scale = min(
        min(photo_width / width, photo_height / height) * rng.uniform(*share),
        photo_width / (high - low)[0],
        photo_height / (high - low)[1],
    )
    centre = [
        rng.uniform(-low[axis] * scale, max(-low[axis] * scale, side - high[axis] * scale))
        for axis, side in enumerate((photo_width, photo_height))
    ]
    # The level at which the most enlarged frame is still sharp, half way towards the least enlarged one.
    closest = min(1.0, math.exp(path.log_zoom * (frames - 1) / (FRAMES - 1)))
    level = math.floor(2 * math.log2(scale / closest**0.5) + 0.35)
    picture = levels[max(0, min(len(levels) - 1, level))]
    ratio = picture.shape[2] / photo_width
    left = int(max(0, (low[0] * scale + centre[0]) * ratio - MARGIN))
    right = int(min(picture.shape[2], (high[0] * scale + centre[0]) * ratio + MARGIN + 1))
    top = int(max(0, (low[1] * scale + centre[1]) * ratio - MARGIN))
    bottom = int(min(picture.shape[1], (high[1] * scale + centre[1]) * ratio + MARGIN + 1))
    crop = picture[:, top:bottom, left:right].float() / 255
    if colours:
        crop = photometric(crop, rng)
    points = pixel_offsets(height, width)
    origin = torch.tensor([left, top])
    size = torch.tensor([right - left, bottom - top])
    grids = []
    for matrix, shift in steps:
        seen = points @ torch.from_numpy(matrix.T).float() + torch.from_numpy(shift).float()
        grids.append(((seen * scale + torch.tensor(centre).float()) * ratio - origin) / size * 2 - 1)
    grid = torch.stack(grids).view(1, frames * height, width, 2).float()
    clip = functional.grid_sample(crop[None], grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return clip.view(3, frames, height, width).clamp(0, 1)


def pixel_offsets(height: int, width: int) -> torch.Tensor:
    """Offset of each pixel from the centre, [H, W, 2] as (x, y)."""
    y, x = torch.meshgrid(torch.arange(height) - (height - 1) / 2, torch.arange(width) - (width - 1) / 2, indexing="ij")
    return torch.stack([x, y], -1)


def warp(frame: torch.Tensor, path: CameraPath, frames: int = FRAMES) -> tuple[torch.Tensor, torch.Tensor]:
    """The true video of one frame [3, H, W] along a path: (clip [3, F, H, W], seen [F, H, W]).

    `seen` is 1 where the first frame shows what belongs there, 0 where it lies outside.
    """
    height, width = frame.shape[1:]
    points, size = pixel_offsets(height, width), torch.tensor([width, height])
    grids = []
    for matrix, shift in affines(path, frames):
        source = points @ torch.from_numpy(matrix.T).float() + torch.from_numpy(shift).float()
        grids.append((source + size / 2) / size * 2 - 1)
    grid = torch.stack(grids)
    copies = frame[None].expand(frames, -1, -1, -1)
    clip = functional.grid_sample(copies, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return clip.permute(1, 0, 2, 3), (grid.abs() < 1).all(-1).float()
