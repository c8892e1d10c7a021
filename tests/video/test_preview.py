"""The linear preview resembles what the VAE would show."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from videoserve.video.preview import Preview, patterns

SAMPLES = Path(__file__).parents[2] / "videoserve" / "demo" / "pictures"


def test_patterns_are_always_the_same() -> None:
    first, second = patterns(32), patterns(32)
    assert torch.equal(first, second)
    assert first.std(dim=(2, 3)).min() > 0.05


def test_known_map() -> None:
    weights = torch.zeros(3, 3)
    weights[0, 0], weights[2] = 1.0, torch.tensor([0.0, 1.0, -1.0])
    preview = Preview(weights, weights)
    latents = torch.zeros(2, 1, 2)
    latents[0, 0, 1] = 1.0
    assert preview.colours(latents, 0).tolist() == [[[128, 255, 0], [255, 255, 0]]]


def test_a_photo_can_be_recognised(demo_studio: Any) -> None:
    components = demo_studio.shared().components
    preview = Preview.fit(components)
    photo = Image.open(SAMPLES / "chelsea.jpg").convert("RGB").resize((128, 128))
    pixels = torch.from_numpy(np.array(photo)).permute(2, 0, 1).float() / 127.5 - 1
    clip = pixels[None, :, None].expand(-1, -1, 9, -1, -1)
    latents = components.vae.encode(clip)
    small = np.asarray(photo.resize((16, 16), Image.Resampling.BOX), dtype=float)
    for frame in (0, 1, 2):
        shown = preview.colours(latents[0, :, frame], frame).numpy().astype(float)
        error = np.sqrt(np.mean((shown - small) ** 2))
        assert error < 0.5 * small.std()


def test_small_and_wide_latents(studio: Callable[..., Any]) -> None:
    preview = Preview.fit(studio("wan22-a14b").shared().components)
    for shape, size in (((1, 16, 1, 2, 2), (128, 128)), ((1, 16, 2, 3, 5), (2 * 215, 129))):
        picture = Image.open(io.BytesIO(preview.jpeg(torch.randn(shape, generator=torch.Generator().manual_seed(0)))))
        assert picture.size == size
