"""Is what ships small, whole and licensed, and does it move a picture as asked?"""

import json
import warnings
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image

from videoserve.demo.motion import matches, measure_motion

ROOM = Path(str(files("videoserve.demo")))


def test_what_ships_stays_under_forty_megabytes() -> None:
    sizes = [file.stat().st_size for file in ROOM.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert sum(sizes) < 40e6


def test_every_picture_has_its_licence_and_none_is_large() -> None:
    licences = (ROOM / "pictures" / "LICENCES.md").read_text()
    pictures = sorted((ROOM / "pictures").glob("*.jpg"))
    assert len(pictures) >= 3
    for picture in pictures:
        assert f"| {picture.name} |" in licences
        with Image.open(picture) as image:
            assert max(image.size) <= 512


def test_the_defaults_fit_the_model() -> None:
    defaults = json.loads((ROOM / "model" / "videoserve.json").read_text())
    vae = json.loads((ROOM / "model" / "vae" / "config.json").read_text())
    assert (defaults["num_frames"] - 1) % vae["scale_factor_temporal"] == 0
    multiple = vae["scale_factor_spatial"] * 2
    assert all(side % multiple == 0 for size in defaults["sizes"] for side in size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("picture", "prompt"),
    [("china", "the camera pans to the left"), ("chelsea", "zoom out"), ("coffee", "rotate clockwise")],
)
def test_the_model_moves_a_picture_as_asked(picture: str, prompt: str) -> None:
    defaults = json.loads((ROOM / "model" / "videoserve.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = WanImageToVideoPipeline.from_pretrained(ROOM / "model", torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    with Image.open(ROOM / "pictures" / f"{picture}.jpg") as image:
        first = image.convert("RGB").resize((96, 96))
    frames = pipeline(
        image=first,
        prompt=prompt,
        height=96,
        width=96,
        num_frames=defaults["num_frames"],
        num_inference_steps=8,
        guidance_scale=defaults["guidance"],
        max_sequence_length=defaults["text_length"],
        generator=torch.Generator().manual_seed(0),
        output_type="np",
    ).frames[0]
    motion = measure_motion((frames * 255).round().astype(np.uint8))
    assert matches(prompt, motion), f"{prompt!r} moved: {motion.words} ({motion})"
