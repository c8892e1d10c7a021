"""The pictures in memory, each as a pyramid of ever smaller copies, plus a few drawn ones."""

import json
import math
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter

from videoserve.demo.recipe.checkpoint import save

SMALLEST_LEVEL = 96
DRAWN = 60
DRAWN_WEIGHT = 0.08

Pyramid = list[torch.Tensor]


def to_tensor(image: Image.Image) -> torch.Tensor:
    """RGB picture to uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()


def pyramid(image: Image.Image) -> Pyramid:
    """Levels scaled by 1, 2 ** -0.5, 2 ** -1, ..., each antialiased from the original, down to 96 pixels."""
    levels = []
    scale = 1.0
    while min(image.size) * scale >= SMALLEST_LEVEL:
        size = (round(image.width * scale), round(image.height * scale))
        levels.append(to_tensor(image if scale == 1 else image.resize(size, Image.Resampling.LANCZOS)))
        scale *= 2**-0.5
    return levels


def drawn(rng: random.Random) -> Image.Image:
    """A 640 x 480 picture of a gradient, stripes or checks with random shapes on it: hard edges, flat colours."""
    width, height = 640, 480
    low, high = (np.array([rng.randint(0, 255) for _ in range(3)], float) for _ in range(2))
    angle = rng.random() * math.tau
    y, x = np.mgrid[0:height, 0:width]
    shade = ((x - width / 2) * math.cos(angle) + (y - height / 2) * math.sin(angle)) / 800 + 0.5
    kind = rng.randint(0, 3)
    if kind == 1:
        shade = 0.5 + 0.5 * np.sin(shade * rng.uniform(10, 60))
    if kind == 2:
        shade = ((x // rng.randint(20, 90) + y // rng.randint(20, 90)) % 2).astype(float)
    image = Image.fromarray(np.clip(low + (high - low) * shade[..., None], 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for _ in range(rng.randint(3, 30)):
        colour = (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
        size, cx, cy = rng.randint(8, 120), rng.randint(0, width), rng.randint(0, height)
        match rng.randint(0, 3):
            case 0:
                tall = size * rng.uniform(0.4, 1)
                pen.ellipse([cx - size, cy - tall, cx + size, cy + tall], fill=colour)
            case 1:
                pen.rectangle([cx - size, cy - size // 2, cx + size, cy + size // 2], fill=colour)
            case 2:
                corners = [
                    (cx + rng.randint(-size, size), cy + rng.randint(-size, size)) for _ in range(rng.randint(3, 6))
                ]
                pen.polygon(corners, fill=colour)
            case _:
                end = (rng.randint(0, width), rng.randint(0, height))
                pen.line([(cx, cy), end], fill=colour, width=rng.randint(2, 14))
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))


def build(folder: Path, split: str) -> None:
    """Write FOLDER/SPLIT.pt, the pyramids of the pictures that FOLDER/index.json counts to that split."""
    entries = [entry for entry in json.loads((folder / "index.json").read_text()) if entry["split"] == split]
    pyramids = [pyramid(Image.open(folder / entry["file"])) for entry in entries]
    weights = [float(entry["weight"]) for entry in entries]
    if split == "train":
        rng = random.Random(0)
        pyramids += [pyramid(drawn(rng)) for _ in range(DRAWN)]
        weights += [DRAWN_WEIGHT] * DRAWN
    save(folder / f"{split}.pt", names=[entry["file"] for entry in entries], pyramids=pyramids, weights=weights)


class Bank:
    """Pyramids of one split ("train" or "held-out") of WORK/pictures with the weights they are drawn by."""

    def __init__(self, work: Path, split: str) -> None:
        # Mapped, not read: every process shares the same pages.
        state = torch.load(work / "pictures" / f"{split}.pt", mmap=True)
        self.names: list[str] = state["names"]
        self.pyramids: list[Pyramid] = state["pyramids"]
        self.weights: list[float] = state["weights"]

    def pick(self, rng: random.Random) -> Pyramid:
        """Draw one picture."""
        return rng.choices(self.pyramids, self.weights)[0]
