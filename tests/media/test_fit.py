"""A picture at the size of a video: cropped, padded or stretched, and told so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.picture_bytes import scene
from videoserve.media.image import fit, fit_adjustments
from videoserve.types import ResizeMode

_MODES: tuple[ResizeMode, ...] = ("crop", "pad", "stretch")


def _resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


@pytest.mark.parametrize("mode", _MODES)
def test_same_size_is_untouched(mode: ResizeMode) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (33, 47, 3), dtype=np.uint8)
    assert np.array_equal(fit(Image.fromarray(pixels), 47, 33, mode), pixels)
    assert fit_adjustments(47, 33, 47, 33, mode) == ()


def test_crop_takes_the_middle() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (100, 1000, 3), dtype=np.uint8)
    fitted = fit(Image.fromarray(pixels), 50, 50, "crop")
    assert np.array_equal(fitted, _resized(pixels, 500, 50)[:, 225:275])


def test_crop_of_a_tall_picture() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (200, 60, 3), dtype=np.uint8)
    assert np.array_equal(fit(Image.fromarray(pixels), 30, 20, "crop"), _resized(pixels, 30, 100)[40:60])


def test_pad_shows_all_between_black_bars() -> None:
    pixels = np.full((100, 1000, 3), 200, np.uint8)
    fitted = fit(Image.fromarray(pixels), 100, 100, "pad")
    assert (fitted[:45] == 0).all()
    assert (fitted[45:55] == 200).all()
    assert (fitted[55:] == 0).all()


def test_stretch_fills() -> None:
    pixels = scene(100, 20)
    assert np.array_equal(fit(Image.fromarray(pixels), 40, 40, "stretch"), _resized(pixels, 40, 40))


def test_fine_patterns_do_not_alias() -> None:
    checks = np.indices((510, 510)).sum(axis=0) % 2 * 255
    fitted = fit(Image.fromarray(np.dstack([checks.astype(np.uint8)] * 3)), 64, 64, "crop")
    assert np.abs(fitted[4:-4, 4:-4].astype(int) - 127).max() < 8


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.sampled_from(_MODES))
def test_any_size_comes_out_exact(src_w: int, src_h: int, width: int, height: int, mode: ResizeMode) -> None:
    picture = Image.new("RGB", (src_w, src_h), (90, 120, 150))
    fitted = fit(picture, width, height, mode)
    assert fitted.shape == (height, width, 3)
    assert fitted.dtype == np.uint8
    shown = (fitted == (90, 120, 150)).all(axis=2)
    assert (shown | (fitted == 0).all(axis=2)).all()
    if mode != "pad":
        assert shown.all()
    for axis in (0, 1):
        filled = np.flatnonzero(shown.any(axis=axis))
        before, after = filled[0], shown.shape[1 - axis] - 1 - filled[-1]
        assert 0 <= after - before <= 1


@pytest.mark.parametrize(
    ("source", "target", "mode", "says"),
    [
        ((7, 5), (128, 128), "crop", ["7 × 5 pixels; it is scaled up", "2 of its 7 pixels are cut"]),
        ((7, 5), (128, 128), "pad", ["7 × 5 pixels; it is scaled up", "black bars are added at top and bottom"]),
        ((7, 5), (128, 128), "stretch", ["7 × 5 pixels; it is scaled up", "stretched from 7 × 5 to 128 × 128"]),
        ((1000, 100), (64, 64), "crop", ["900 of its 1000 pixels are cut, half each at left and right"]),
        ((100, 1000), (64, 64), "crop", ["900 of its 1000 pixels are cut, half each at top and bottom"]),
        ((100, 1000), (64, 64), "pad", ["black bars are added at left and right"]),
        ((512, 512), (128, 128), "crop", []),
        ((256, 144), (128, 72), "pad", []),
        ((256, 144), (128, 72), "stretch", []),
        ((4032, 3024), (128, 96), "crop", []),
        # Less than a pixel of the source is not worth a sentence.
        ((1279, 719), (1280, 720), "pad", ["it is scaled up"]),
    ],
)
def test_adjustments(source: tuple[int, int], target: tuple[int, int], mode: ResizeMode, says: list[str]) -> None:
    sentences = fit_adjustments(*source, *target, mode)
    assert len(sentences) == len(says), sentences
    for words, sentence in zip(says, sentences, strict=True):
        assert words in sentence
