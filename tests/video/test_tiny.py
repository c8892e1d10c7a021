"""The tiny directories are whole: diffusers' own pipeline loads and runs them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image


@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_diffusers_runs_the_tiny_directory(layout: str, tiny_model_dir: Callable[[str], Path]) -> None:
    pipeline = WanImageToVideoPipeline.from_pretrained(tiny_model_dir(layout))
    pipeline.set_progress_bar_config(disable=True)
    picture = Image.effect_noise((48, 32), 80).convert("RGB")
    video = pipeline(
        image=picture,
        prompt="pan left",
        height=32,
        width=48,
        num_frames=5,
        num_inference_steps=3,
        guidance_scale=2.0,
        max_sequence_length=512,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).frames
    assert video.shape == (1, 5, 3, 32, 48)
    assert video.isfinite().all()
    assert video.std() > 0.02
