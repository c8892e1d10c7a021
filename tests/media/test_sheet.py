from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from videoserve.media.sheet import spritesheet, thumbnail


def _levels(count: int, height: int, width: int) -> NDArray[np.uint8]:
    """Frame i is flat at level 10 + 3 i."""
    levels = (10 + 3 * np.arange(count)).astype(np.uint8)
    return np.tile(levels[:, None, None, None], (1, height, width, 3))


def test_thumbnail_is_the_first_frame_as_webp() -> None:
    with Image.open(BytesIO(thumbnail(_levels(9, 64, 96)))) as picture:
        assert (picture.format, picture.size) == ("WEBP", (96, 64))
        assert np.abs(np.asarray(picture).astype(int) - 10).max() <= 3


def test_thumbnail_of_a_large_video_is_small() -> None:
    with Image.open(BytesIO(thumbnail(_levels(2, 720, 1280)))) as picture:
        assert picture.size == (512, 288)


@pytest.mark.parametrize(
    ("count", "columns", "shown"),
    [
        (1, 1, [0]),
        (3, 3, [0, 1, 2]),
        (5, 4, [0, 1, 2, 3, 4]),
        (17, 4, [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16]),
        (61, 4, list(range(0, 61, 4))),
    ],
)
def test_spritesheet_reads_like_text(count: int, columns: int, shown: list[int]) -> None:
    with Image.open(BytesIO(spritesheet(_levels(count, 32, 48)))) as picture:
        assert picture.format == "JPEG"
        rows = -(-len(shown) // columns)
        assert picture.size == (48 * columns, 32 * rows)
        pixels = np.asarray(picture).astype(int)
    cells = pixels.reshape(rows, 32, columns, 48, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 48, 3)
    middles = cells[:, 8:24, 8:40].mean(axis=(1, 2, 3))
    assert middles[: len(shown)] == pytest.approx([10 + 3 * index for index in shown], abs=2)
    assert middles[len(shown) :] == pytest.approx(0, abs=2)


def test_spritesheet_of_a_large_video_is_small() -> None:
    with Image.open(BytesIO(spritesheet(_levels(16, 720, 1280)))) as picture:
        assert picture.size == (1024, 576)
