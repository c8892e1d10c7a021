"""Every picture of the table comes out as the table says, and no bytes do anything worse than being refused."""

import random
import time
import warnings
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFile

from tests import picture_bytes as made
from tests.image_cases import CASES, PIXEL_LIMIT, SIDE_MIN, Case
from videoserve.errors import BadImage
from videoserve.media.image import NormalisedImage, normalise

_SOURCES: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: made.turned(6),
    "jpeg-progressive": lambda: made.jpeg(made.scene(), progressive=True),
    "png": lambda: made.encode(made.scene(), "PNG"),
    "png-palette": lambda: made.encode(made.stripes(), "PNG", "P", transparency=bytes([255, 0, 128, 255])),
    "apng": lambda: made.animation("PNG"),
    "gif": lambda: made.encode(made.scene(), "GIF"),
    "gif-animated": lambda: made.animation("GIF"),
    "webp": lambda: made.encode(made.scene(), "WEBP", lossless=True),
    "webp-lossy": lambda: made.encode(made.scene(), "WEBP"),
    "webp-animated": lambda: made.animation("WEBP"),
    "bmp": lambda: made.encode(made.scene(), "BMP"),
    "tiff": lambda: made.turned(5, "TIFF"),
    "tiff-deflate": lambda: made.encode(made.scene(), "TIFF", compression="tiff_deflate"),
    "cmyk": made.cmyk_jpeg,
}


def _normalise(data: bytes) -> NormalisedImage:
    return normalise(data, pixel_limit=PIXEL_LIMIT, side_min=SIDE_MIN)


def _outcome(data: bytes, pixel_limit: int = PIXEL_LIMIT) -> NormalisedImage | int:
    """The picture, or the status of the refusal; anything else that happens is a failure of the test."""
    try:
        return normalise(data, pixel_limit=pixel_limit, side_min=SIDE_MIN)
    except BadImage as error:
        return error.status


def _pixels(image: NormalisedImage) -> NDArray[np.uint8]:
    with Image.open(BytesIO(image.png)) as picture:
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (image.width, image.height))
        assert not picture.info
        return np.asarray(picture)


def _furthest(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


@pytest.mark.parametrize("case", [case for case in CASES if case.status == 200], ids=lambda case: case.name)
def test_accepted(case: Case) -> None:
    image = _normalise(case.build())
    assert case.pixels is not None
    assert _furthest(_pixels(image), case.pixels()) <= case.tolerance
    assert len(image.adjustments) == len(case.says)
    for words, sentence in zip(case.says, image.adjustments, strict=True):
        assert words in sentence


@pytest.mark.parametrize("case", [case for case in CASES if case.status != 200], ids=lambda case: case.name)
def test_refused(case: Case) -> None:
    with pytest.raises(BadImage) as caught:
        _normalise(case.build())
    assert caught.value.status == case.status
    assert caught.value.message.endswith(".")
    for words in case.says:
        assert words in caught.value.message


def test_orientations_differ() -> None:
    """The scene can tell all eight apart, so the cases above can fail."""
    shapes = [np.asarray(Image.open(BytesIO(made.turned(n)))) for n in range(1, 9)]
    assert all(a.shape != b.shape or _furthest(a, b) > 40 for i, a in enumerate(shapes) for b in shapes[i + 1 :])


@pytest.mark.parametrize("name", _SOURCES)
def test_never_part_of_a_picture(name: str) -> None:
    """Cut anywhere: refused, or (where only what follows the first picture is missing) whole."""
    data = _SOURCES[name]()
    whole = _pixels(_normalise(data))
    ends = sorted({len(data) * part // 60 for part in range(60)} | {len(data) - n for n in range(1, 20)})
    outcomes = [_outcome(data[:end]) for end in ends]
    assert outcomes.count(400) >= 15
    for end, outcome in zip(ends, outcomes, strict=True):
        if outcome != 400:
            assert isinstance(outcome, NormalisedImage), f"cut at {end} of {len(data)} bytes: {outcome}"
            assert np.array_equal(_pixels(outcome), whole), f"cut at {end} of {len(data)} bytes"


@pytest.mark.parametrize("name", _SOURCES)
# A damaged note about the camera makes Pillow warn; that a warning is an exception here is no rule of the service.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mutations_are_refused_or_pictures(name: str) -> None:
    data = _SOURCES[name]()
    chance = random.Random(name)
    for _ in range(300):
        mutated = bytearray(data)
        for _ in range(chance.choice((1, 2, 8))):
            # Headers are where it hurts: half of the hits go there.
            where = chance.randrange(min(len(data), 120) if chance.random() < 0.5 else len(data))
            mutated[where] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        outcome = _outcome(bytes(mutated), pixel_limit=4_000_000)
        if isinstance(outcome, NormalisedImage):
            assert outcome.width * outcome.height <= 4_000_000
        else:
            assert outcome in (400, 413, 415)


def test_limits_of_pixels_and_sides_are_the_callers() -> None:
    data = made.encode(made.scene(48, 32), "PNG")
    assert normalise(data, pixel_limit=48 * 32, side_min=32).width == 48
    with pytest.raises(BadImage, match="48 × 32 pixels; at most 1535") as caught:
        normalise(data, pixel_limit=48 * 32 - 1, side_min=32)
    assert caught.value.status == 413
    with pytest.raises(BadImage, match="the smallest that is accepted is 33 × 33") as caught:
        normalise(data, pixel_limit=48 * 32, side_min=33)
    assert caught.value.status == 400


def test_pillow_is_left_as_it_was() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)
    outcomes = [_outcome(data) for data in (made.huge_header("WEBP"), made.cmyk_jpeg()[:400], made.gray16())]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [413, 400]
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before


def test_huge_pictures_are_refused_before_decoding() -> None:
    data = made.huge_png()
    assert len(data) < 4_000_000
    started = time.process_time()
    with pytest.raises(BadImage):
        _normalise(data)
    assert time.process_time() - started < 0.1


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = made.encode(made.scene(2000, 2000), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    assert _normalise(data).width == 2000
    started = time.process_time()
    with pytest.raises(BadImage, match="drawn in 1010 scans; at most 64") as caught:
        _normalise(data[:-2] + 1000 * data[last:-2] + b"\xff\xd9")
    assert caught.value.status == 400
    assert time.process_time() - started < 0.5


def test_pages_of_a_tiff_are_not_counted() -> None:
    started = time.process_time()
    assert _normalise(made.many_pages(10_000)).adjustments == ("The file holds several pages; the first one is used.",)
    assert time.process_time() - started < 0.5


def test_same_bytes_give_same_bytes() -> None:
    data = made.turned(3)
    assert _normalise(data) == _normalise(data)


def test_twelve_megapixels_take_about_a_second() -> None:
    coarse = np.random.default_rng(0).integers(0, 256, (150, 200, 3), dtype=np.uint8)
    photo = np.asarray(Image.fromarray(coarse).resize((4000, 3000), Image.Resampling.BICUBIC))
    data = made.encode(photo, "JPEG", quality=90)
    started = time.process_time()
    image = _normalise(data)
    assert (image.width, image.height) == (4000, 3000)
    # Processor time: the machine may be busy with other things.
    assert time.process_time() - started < 2.0
