"""Do the measures of a swirl and of sepia see what was done to a picture, and nothing where nothing was done?"""

import random
from importlib.resources import files

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from videoserve.demo.recipe.clips import warp
from videoserve.demo.recipe.effects import EFFECTS, SWIRL_ANGLE, faded, swirled
from videoserve.demo.recipe.motions import CameraPath, Label
from videoserve.demo.rings import turns
from videoserve.demo.sepia import sepia_shares

PICTURES = ("astronaut", "chelsea", "coffee", "china")


def still(name: str) -> torch.Tensor:
    with Image.open(str(files("videoserve.demo") / "pictures" / f"{name}.jpg")) as image:
        picture = np.array(image.convert("RGB").resize((96, 96), Image.Resampling.LANCZOS))
    return torch.from_numpy(picture).permute(2, 0, 1) / 255


def frames_of(clip: torch.Tensor) -> NDArray[np.uint8]:
    return (clip * 255).round().byte().permute(1, 2, 3, 0).numpy()


@pytest.mark.parametrize("name", PICTURES)
def test_each_ring_of_a_swirl_is_measured_as_it_was_turned(name: str) -> None:
    measured = turns(frames_of(swirled(still(name))))
    true = [SWIRL_ANGLE * np.exp(-2.2 * radius**2) for radius in (0.2, 0.4, 0.6, 0.8)]
    np.testing.assert_allclose(measured, true, atol=0.1)


@pytest.mark.parametrize("name", PICTURES)
def test_a_roll_turns_all_rings_alike_and_a_mirrored_swirl_the_other_way(name: str) -> None:
    roll, _ = warp(still(name), CameraPath(rotation=0.6))
    np.testing.assert_allclose(turns(frames_of(roll)), [0.6] * 4, atol=0.06)
    mirrored = frames_of(swirled(still(name).flip(2)))[:, :, ::-1]
    np.testing.assert_allclose(
        turns(mirrored), turns(frames_of(swirled(still(name).flip(2)))) * np.array(-1), atol=0.06
    )


@pytest.mark.parametrize("log_zoom", [0.0, 0.34, -0.16])
def test_no_ring_turns_while_the_camera_stands_and_no_inner_one_while_it_zooms(log_zoom: float) -> None:
    clip, _ = warp(still("coffee"), CameraPath(log_zoom=log_zoom))
    measured = np.abs(turns(frames_of(clip)))
    assert measured[: 2 if log_zoom else 4].max() < 0.11


def test_a_fade_grows_evenly_to_a_whole_print_whatever_moves() -> None:
    for path in (CameraPath(), CameraPath(dx=24.0)):
        clip, _ = warp(still("astronaut"), path)
        shares = sepia_shares(frames_of(faded(clip)))
        # What a pan brings into view or loses has other colours.
        np.testing.assert_allclose(shares, np.linspace(0, 1, 17), atol=0.02 if path == CameraPath() else 0.12)
        assert abs(sepia_shares(frames_of(clip))).max() < 0.2


def test_grey_is_not_sepia_and_blue_is_less() -> None:
    clip = still("coffee")[:, None].expand(-1, 3, -1, -1).clone()
    clip[:, 1:] = clip[:, 1:].mean(0, keepdim=True)
    clip[:, 2] *= torch.tensor([0.7, 1.0, 1.3]).view(3, 1, 1)
    _, grey, blue = sepia_shares(frames_of(clip.clamp(0, 1)))
    assert grey < 0.75
    assert blue < grey - 0.2


@pytest.mark.parametrize("name", EFFECTS)
def test_a_prompt_names_the_effect_mostly_and_the_camera_always(name: str) -> None:
    rng = random.Random(0)
    still_ones = [EFFECTS[name].prompt(Label(), rng) for _ in range(200)]
    named = sum(any(word in prompt for word in EFFECTS[name].words) for prompt in still_ones)
    assert 130 < named < 190
    assert all(still_ones)
    assert all(prompt.strip(" ,") == prompt for prompt in still_ones)
    panned = [EFFECTS[name].prompt(Label(right=1), rng) for _ in range(200)]
    assert sum("right" in prompt.lower() or "left" in prompt.lower() for prompt in panned) > 190
