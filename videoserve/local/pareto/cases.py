"""What the curve is measured on: held-out prompts on the bundled pictures; and what policies are calibrated on."""

import itertools
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image, ImageOps

from videoserve.demo.recipe.motions import sample_label
from videoserve.demo.recipe.paraphrases import PARAPHRASES
from videoserve.demo.recipe.prompts import prompt_for

PICTURES = Path(__file__).parents[2] / "demo" / "pictures"
# Far from the seeds that are measured with.
CALIBRATION_SEED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One video: a picture, what shall happen in it, a seed."""

    prompt: str
    seed: int
    name: str
    picture: Image.Image = field(repr=False)

    @property
    def key(self) -> str:
        return f"{self.name}: {self.prompt} ({self.seed})"


def held_out(prompts: int, seeds: int) -> list[Case]:
    """So many of the hand-written prompts, each with so many seeds, over the bundled pictures in turn.

    ValueError for more prompts than there are.
    """
    if not 1 <= prompts <= len(PARAPHRASES):
        raise ValueError(f"prompts is {prompts}; there are 1 to {len(PARAPHRASES)}.")
    texts = [PARAPHRASES[index * len(PARAPHRASES) // prompts][0] for index in range(prompts)]
    pictures = files()
    return [
        case(text, seed, pictures[(number + seed) % len(pictures)])
        for number, text in enumerate(texts)
        for seed in range(1, seeds + 1)
    ]


def case(prompt: str, seed: int, file: Path) -> Case:
    return Case(prompt=prompt, seed=seed, name=file.stem, picture=Image.open(file).convert("RGB"))


def half_of(name: str) -> int:
    """Which half of the bundled pictures, 0 or 1, one belongs to."""
    return [file.stem for file in files()].index(name) % 2


def calibration(count: int, half: int) -> list[Case]:
    """Prompts that the recipe's templates make, on one half of the pictures, mirrored now and then.

    What is measured on the other half is calibrated with these: nothing of it has been seen.
    """
    rng = random.Random(CALIBRATION_SEED + half)
    return [
        replace(
            case(prompt_for(sample_label(rng), rng), CALIBRATION_SEED + number, file),
            picture=turned(Image.open(file).convert("RGB"), mirrored=number // 2 % 2 == 1),
        )
        for number, file in zip(range(count), itertools.cycle(files()[half::2]), strict=False)
    ]


def turned(picture: Image.Image, *, mirrored: bool) -> Image.Image:
    return ImageOps.mirror(picture) if mirrored else picture


def files() -> list[Path]:
    """The bundled pictures."""
    return sorted(PICTURES.glob("*.jpg"))
