"""Do rendered clips move as their label says?"""

import random
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image

from videoserve.demo.motion import matches, measure_motion
from videoserve.demo.recipe.bank import Pyramid, drawn, pyramid
from videoserve.demo.recipe.clips import render, warp
from videoserve.demo.recipe.motions import CameraPath, Label, path_of, sample_label


@pytest.fixture(scope="module")
def coffee() -> Pyramid:
    return pyramid(Image.open(str(files("videoserve.demo") / "pictures" / "coffee.jpg")))


def test_a_pyramid_halves_every_second_level(coffee: Pyramid) -> None:
    heights = [level.shape[1] for level in coffee]
    assert heights[0] == 341
    assert abs(heights[2] - 341 / 2) <= 1
    assert min(heights) >= 96
    assert all(level.dtype == torch.uint8 and level.shape[0] == 3 for level in coffee)


@pytest.mark.parametrize(
    ("label", "prompt"),
    [
        (Label(right=-1), "pan left"),
        (Label(down=1, speed="fast"), "the camera moves down quickly"),
        (Label(zoom=1), "zoom in"),
        (Label(zoom=-1, right=1), "zoom out and pan right"),
        (Label(turn=1), "rotate clockwise"),
        (Label(), "static camera"),
    ],
)
def test_a_rendered_clip_moves_as_its_label_says(coffee: Pyramid, label: Label, prompt: str) -> None:
    clip = render(coffee, 64, 96, path_of(label), random.Random(3), share=(0.3, 0.4), colours=False)
    assert clip.shape == (3, 17, 64, 96)
    motion = measure_motion((clip.permute(1, 2, 3, 0).numpy() * 255).astype(np.uint8))
    assert matches(prompt, motion), motion


def test_the_warp_of_the_first_frame_is_the_rendered_clip(coffee: Pyramid) -> None:
    path = CameraPath(dx=8, dy=-4, log_zoom=0.1, rotation=0.1)
    clip = render(coffee, 64, 64, path, random.Random(1), share=(0.3, 0.3), colours=False)
    true, seen = warp(clip[:, 0], path)
    error = ((clip - true).abs() * seen).sum((0, 2, 3)) / (3 * seen.sum((1, 2)))
    assert seen[0].all()
    assert not seen[-1].all()
    assert error.max() < 0.03


def test_labels_are_drawn_from_every_kind_and_paths_are_jittered() -> None:
    rng = random.Random(0)
    labels = [sample_label(rng) for _ in range(400)]
    kinds = {label.kind for label in labels}
    assert kinds == {"pan", "diagonal", "zoom", "rotation", "static", "zoom + pan", "zoom + rotation"}
    plain, jittered = path_of(Label(zoom=1)), path_of(Label(zoom=1), rng)
    assert 0 < abs(jittered.log_zoom / plain.log_zoom - 1) <= 0.05


def test_drawn_pictures_differ() -> None:
    rng = random.Random(0)
    first, second = drawn(rng), drawn(rng)
    assert first.size == second.size == (640, 480)
    assert np.asarray(first).std() > 5
    assert not np.array_equal(np.asarray(first), np.asarray(second))
