"""Does the measure see what was done to a picture, and does it refuse what was not asked for?"""

import math
import random
from importlib.resources import files

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from videoserve.demo.motion import Motion, expected_motion, matches, measure_motion

PICTURES = ("astronaut", "chelsea", "coffee", "china")


def filmed(
    name: str, size: tuple[int, int], *, dx: float, dy: float, log_zoom: float, rotation: float
) -> NDArray[np.uint8]:
    """17 frames [F, H, W, 3] of a sample picture whose content moves like that; written with Pillow alone."""
    width, height = size
    with Image.open(str(files("videoserve.demo") / "pictures" / f"{name}.jpg")) as image:
        picture = image.convert("RGB").resize((2 * width, 2 * height), Image.Resampling.LANCZOS)
    frames = []
    for frame in range(17):
        share = frame / 16
        cos, sin = math.cos(rotation * share), math.sin(rotation * share)
        scale = math.exp(-log_zoom * share)
        a, b, d, e = scale * cos, scale * sin, -scale * sin, scale * cos
        cx, cy = width / 2 + dx * share, height / 2 + dy * share
        row = (a, b, width - a * cx - b * cy, d, e, height - d * cx - e * cy)
        frames.append(
            np.asarray(picture.transform((width, height), Image.Transform.AFFINE, row, Image.Resampling.BICUBIC))
        )
    return np.stack(frames)


CASES = [
    ("the camera pans to the left", "pan left", (24, 0, 0, 0)),
    ("slow pan to the right", "pan right", (-11, 0, 0, 0)),
    ("tilt up", "pan up", (0, 24, 0, 0)),
    ("the camera moves down quickly", "pan down", (0, -42, 0, 0)),
    ("zoom in", "zoom in", (0, 0, 0.34, 0)),
    ("the camera slowly zooms out", "zoom out", (0, 0, -0.16, 0)),
    ("rotate clockwise", "rotate clockwise", (0, 0, 0, 0.31)),
    ("the picture turns counter-clockwise", "rotate counterclockwise", (0, 0, 0, -0.31)),
    ("pan up and left", "pan up and left", (18, 18, 0, 0)),
    ("zoom in while panning right", "zoom in, pan right", (-19, 0, 0.27, 0)),
    ("static camera", "static", (0, 0, 0, 0)),
]


@pytest.mark.parametrize(("prompt", "words", "done"), CASES)
def test_a_warped_picture_is_measured_as_it_was_warped(
    prompt: str, words: str, done: tuple[float, float, float, float]
) -> None:
    name = PICTURES[CASES.index((prompt, words, done)) % 4]
    dx, dy, log_zoom, rotation = done
    motion = measure_motion(filmed(name, (128, 96), dx=dx, dy=dy, log_zoom=log_zoom, rotation=rotation))
    assert motion.words == words
    measured = [motion.dx, motion.dy, motion.log_zoom, motion.rotation]
    np.testing.assert_array_less(np.abs(np.subtract(measured, done)), [1.0, 1.0, 0.02, 0.02])
    assert matches(prompt, motion)


def test_each_motion_matches_its_own_prompt_and_no_other() -> None:
    for prompt, _, (dx, dy, log_zoom, rotation) in CASES:
        motion = Motion(dx=dx, dy=dy, log_zoom=log_zoom, rotation=rotation, psnr=30.0)
        assert [other for other, *_ in CASES if matches(other, motion)] == [prompt]


def test_noise_and_blur_do_not_hide_the_motion() -> None:
    clip = filmed("coffee", (96, 96), dx=-24, dy=0, log_zoom=0, rotation=0)
    noise = np.random.default_rng(0).normal(0, 12, clip.shape)
    motion = measure_motion(np.clip(clip + noise, 0, 255).astype(np.uint8))
    assert motion.words == "pan right"
    assert motion.psnr < 28


def test_a_still_clip_is_static_and_does_not_match_a_pan() -> None:
    still = np.repeat(filmed("china", (96, 96), dx=0, dy=0, log_zoom=0, rotation=0)[:1], 17, axis=0)
    motion = measure_motion(still)
    assert motion.words == "static"
    assert not matches("the camera pans to the left", motion)


def test_the_right_axis_the_wrong_way_does_not_match() -> None:
    assert not matches("zoom in", Motion(dx=0, dy=0, log_zoom=-0.34, rotation=0, psnr=30))
    assert not matches("pan left", Motion(dx=-24, dy=0, log_zoom=0, rotation=0, psnr=30))


def test_a_clip_that_changes_altogether_is_explained_badly() -> None:
    rng = random.Random(1)
    frames = [filmed(name, (96, 96), dx=0, dy=0, log_zoom=0, rotation=0)[0] for name in PICTURES]
    shuffled = np.stack([frames[0], *(rng.choice(frames[1:]) for _ in range(8))])
    assert measure_motion(shuffled).psnr < 18


@pytest.mark.parametrize(
    ("prompt", "direction"),
    [
        ("The camera slowly pans toward the left side of the scene.", (1, 0, 0, 0)),
        ("A gentle upward tilt of the camera", (0, 1, 0, 0)),
        ("the scene slides left", (-1, 0, 0, 0)),
        ("the camera slowly zooms out to show the whole valley", (0, 0, -1, 0)),
        ("Quick zoom into her face", (0, 0, 1, 0)),
        ("Fast counterclockwise spin", (0, 0, 0, -1)),
        ("no movement at all", (0, 0, 0, 0)),
        ("zoom in while panning left", (1, 0, 1, 0)),
        ("A cat on a sofa. The camera moves right.", (-1, 0, 0, 0)),
    ],
)
def test_prompts_are_read_as_directions(prompt: str, direction: tuple[int, int, int, int]) -> None:
    expected = expected_motion(prompt)
    assert expected is not None
    assert tuple(np.sign(expected.strength)) == direction


def test_a_prompt_without_a_motion_cannot_be_measured_against() -> None:
    assert expected_motion("a cat on a sofa, cinematic") is None
    with pytest.raises(ValueError, match="names no motion"):
        matches("a cat on a sofa, cinematic", Motion(dx=0, dy=0, log_zoom=0.16, rotation=0, psnr=30))


def test_a_single_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="two frames or more"):
        measure_motion(np.zeros((1, 8, 8, 3), np.uint8))
