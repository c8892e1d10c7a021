"""Fidelity against the formulas, written out slowly."""

import json
from math import log10

import numpy as np
import pytest
from numpy.typing import NDArray

from videoserve.media.fidelity import Likeness, fidelity, ssim

Frames = NDArray[np.uint8]


def drawn(seed: int, frames: int = 5, height: int = 13, width: int = 17) -> Frames:
    """Noise over a ramp, another one in every frame."""
    generator = np.random.default_rng(seed)
    ramp = np.linspace(30, 200, width)[None, None, :, None] + 4 * np.arange(frames)[:, None, None, None]
    return (ramp + generator.integers(-20, 20, (frames, height, width, 3))).astype(np.uint8)


def slow_ssim(ours: Frames, theirs: Frames) -> float:
    """Formula 13 of Wang et al. 2004, window by window."""
    found = []
    for top in range(ours.shape[0] - 7):
        for left in range(ours.shape[1] - 7):
            for channel in range(3):
                x, y = (f[top : top + 8, left : left + 8, channel].astype(float) for f in (ours, theirs))
                covariance = ((x - x.mean()) * (y - y.mean())).mean()
                c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
                light = (2 * x.mean() * y.mean() + c1) / (x.mean() ** 2 + y.mean() ** 2 + c1)
                found.append(light * (2 * covariance + c2) / (x.var() + y.var() + c2))
    return float(np.mean(found))


def test_identical_frames_have_no_end_of_decibels_and_json_holds_that() -> None:
    frames = drawn(0)
    found = fidelity(frames, frames.copy())
    perfect = Likeness(psnr_db=None, ssim=1.0)
    assert (found.first, found.mean, found.worst, found.motion) == (perfect, perfect, perfect, 1.0)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()


@pytest.mark.parametrize("off", [1, 5, 16])
def test_a_constant_error_has_its_known_psnr(off: int) -> None:
    reference = np.full((3, 16, 16, 3), 100, np.uint8)
    found = fidelity(reference + np.uint8(off), reference)
    # The error is off², and 255 the peak: 48.13 dB for 1.
    assert found.mean == found.first
    assert found.first.psnr_db == pytest.approx(20 * log10(255 / off))
    # Flat windows differ in luminance only.
    a, b, c1 = 100 + off, 100, (0.01 * 255) ** 2
    assert found.first.ssim == pytest.approx((2 * a * b + c1) / (a * a + b * b + c1))
    assert found.motion is None


def test_the_first_frame_counts_for_itself() -> None:
    reference = drawn(0)
    frames = reference.copy()
    frames[0] = 255 - frames[0]
    found = fidelity(frames, reference)
    assert found.mean == found.worst == Likeness(psnr_db=None, ssim=1.0)
    assert found.first.psnr_db is not None
    assert found.first.ssim < 0.5
    assert found.motion is not None
    assert found.motion > 1


def test_mean_and_worst_frames() -> None:
    reference = np.full((4, 16, 16, 3), 100, np.uint8)
    frames = reference.copy()
    frames[1] += 2
    # Few large errors: a lower PSNR than frame 3's, and a higher SSIM.
    frames[2, 0, 0] = 255
    frames[3] += np.random.default_rng(0).integers(0, 5, frames[3].shape).astype(np.uint8)
    found = fidelity(frames, reference)
    errors = [np.square(f.astype(float) - 100).mean() for f in frames[1:]]
    assert found.worst_frames == {"psnr_db": 2, "ssim": 3}
    assert found.mean is not None
    assert found.worst is not None
    assert found.mean.psnr_db == pytest.approx(10 * log10(255**2 / np.mean(errors)))
    assert found.worst.psnr_db == pytest.approx(10 * log10(255**2 / max(errors)))
    assert found.worst.ssim == ssim(frames[3], reference[3])
    assert found.mean.ssim == np.mean([ssim(*pair) for pair in zip(frames[1:], reference[1:], strict=True)])


@pytest.mark.parametrize("size", [(8, 8), (9, 21), (13, 8)])
def test_ssim_is_the_formula(size: tuple[int, int]) -> None:
    for seed in range(3):
        ours, theirs = drawn(seed, 1, *size)[0], drawn(seed + 9, 1, *size)[0]
        assert ssim(ours, theirs) == pytest.approx(slow_ssim(ours, theirs), abs=1e-12)
        assert ssim(ours, theirs) == ssim(theirs, ours)
    # As large as the sums can get: nothing overflows.
    white, black = np.full((*size, 3), 255, np.uint8), np.zeros((*size, 3), np.uint8)
    assert ssim(white, white) == 1.0
    assert ssim(white, black) == pytest.approx(slow_ssim(white, black), abs=1e-12)


def test_an_inverted_texture_is_unlike() -> None:
    texture = np.random.default_rng(0).integers(0, 256, (1, 24, 24, 3)).astype(np.uint8)
    assert ssim(texture[0], 255 - texture[0]) < -0.8


def test_motion_that_froze_is_below_1() -> None:
    reference = np.stack([np.full((8, 8, 3), 10 * index, np.uint8) for index in range(5)])
    assert fidelity(np.zeros_like(reference), reference).motion == 0.0
    # Half of each change is a quarter of its energy.
    assert fidelity(reference // 2, reference).motion == 0.25
    assert fidelity(reference[::-1].copy(), reference).motion == 1.0


def test_a_video_of_one_frame_has_a_first_frame_only() -> None:
    found = fidelity(drawn(0, 1), drawn(1, 1))
    assert found.first.psnr_db is not None
    assert (found.frames, found.mean, found.worst, found.worst_frames, found.motion) == (1, None, None, None, None)


@pytest.mark.parametrize(
    ("shape", "other", "sentence"),
    [
        ((3, 16, 16, 3), (2, 16, 16, 3), "cannot be compared with a reference"),
        ((0, 16, 16, 3), (0, 16, 16, 3), "cannot be compared"),
        ((2, 16, 7, 3), (2, 16, 7, 3), "of 7×16 pixels are too small to compare: 8×8 at least"),
    ],
)
def test_says_what_it_takes(shape: tuple[int, ...], other: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        fidelity(np.zeros(shape, np.uint8), np.zeros(other, np.uint8))
