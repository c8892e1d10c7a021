import zlib

import numpy as np
import pytest
from PIL import Image

from videoserve.media.png import read_png, write_png


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (255, 2), (256, 3), (257, 3), (600, 7)])
def test_any_decoder_reads_the_same_pixels(size: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("png") / "a.png"
    path.write_bytes(write_png(pixels))
    with Image.open(path) as picture:
        picture.verify()
    with Image.open(path) as picture:
        assert np.array_equal(np.asarray(picture), pixels)


def test_a_view_is_written_as_it_looks() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    turned = pixels.transpose(1, 0, 2)[::-1]
    assert write_png(turned) == write_png(np.ascontiguousarray(turned))


def test_flat_pictures_stay_small() -> None:
    assert len(write_png(np.full((1000, 1000, 3), 77, np.uint8))) < 30_000


def test_deflate_stream_is_one() -> None:
    data = write_png(np.zeros((600, 4, 3), np.uint8))
    assert data.count(b"IDAT") == 1
    start = data.index(b"IDAT") + 4
    assert len(zlib.decompress(data[start : data.index(b"IEND") - 8])) == 600 * 13


def test_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    # A picture that the operator's limit let in is read whatever Pillow's own limit says.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    picture = read_png(write_png(pixels))
    assert picture.mode == "RGB"
    assert np.array_equal(np.asarray(picture), pixels)
