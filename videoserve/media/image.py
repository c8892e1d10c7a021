"""A picture as clients send it, and the picture a model is given."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from videoserve.media.colour import to_srgb
from videoserve.media.decode import decode
from videoserve.media.png import write_png
from videoserve.types import ResizeMode


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalisedImage:
    """An upright 8-bit sRGB picture as PNG bytes (no metadata; the same pixels give the same bytes).

    adjustments  sentences: what was decided on the way (a transparent area over white, the first frame of several)
    """

    png: bytes
    width: int
    height: int
    adjustments: tuple[str, ...]


def normalise(data: bytes, *, pixel_limit: int, side_min: int) -> NormalisedImage:
    """Any picture a client may send, as one that the rest of the service never has to doubt.

    data         bytes of unknown origin; their type is read from the bytes themselves
    pixel_limit  largest width × height, checked before decoding
    side_min     smallest width and height, in pixels

    Raises BadImage with status 400 (empty, broken, truncated, too small), 413 (too many pixels) or 415 (other types).
    """
    picture, decode_notes = decode(data, pixel_limit=pixel_limit, side_min=side_min)
    rgb, colour_notes = to_srgb(picture)
    return NormalisedImage(
        png=write_png(np.asarray(rgb)), width=rgb.width, height=rgb.height, adjustments=(*decode_notes, *colour_notes)
    )


def fit(image: Image.Image, width: int, height: int, mode: ResizeMode) -> NDArray[np.uint8]:
    """`image` (mode RGB) at width × height, as uint8 [H, W, 3]; untouched where it has that size already.

    crop     fills the size and cuts what sticks out, the same on both sides
    pad      shows all of it, centred, with black bars
    stretch  each side on its own

    Lanczos, with its support widened when shrinking, so that fine patterns do not alias.
    """
    if image.size == (width, height):
        return np.asarray(image)
    lanczos = Image.Resampling.LANCZOS
    if mode == "stretch":
        return np.asarray(image.resize((width, height), lanczos))
    if mode == "crop":
        return np.asarray(image.resize((width, height), lanczos, box=_crop_box(image.size, width, height)))
    inner = _inner_size(image.size, width, height)
    canvas = Image.new("RGB", (width, height), "black")
    canvas.paste(image.resize(inner, lanczos), ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return np.asarray(canvas)


def fit_adjustments(src_w: int, src_h: int, width: int, height: int, mode: ResizeMode) -> tuple[str, ...]:
    """What `fit` does to a picture of src_w × src_h that its owner would want to know, as sentences."""
    notes: list[str] = []
    left, top, right, bottom = _crop_box((src_w, src_h), width, height)
    inner = _inner_size((src_w, src_h), width, height)
    scale = {"crop": width / (right - left), "pad": inner[0] / src_w, "stretch": max(width / src_w, height / src_h)}
    if scale[mode] > 1:
        notes.append(
            f"The picture has {src_w} × {src_h} pixels; it is scaled up for a video of {width} × {height}, "
            "so it shows less detail than that size could."
        )
    cut_w, cut_h = round(src_w - (right - left)), round(src_h - (bottom - top))
    if mode == "crop" and (cut_w or cut_h):
        edges, cut, side = ("left and right", cut_w, src_w) if cut_w else ("top and bottom", cut_h, src_h)
        are = "is" if cut == 1 else "are"
        notes.append(
            f"The picture's shape ({src_w} × {src_h}) is not the video's ({width} × {height}): "
            f"{cut} of its {side} pixels {are} cut, half each at {edges}; resize_mode pad keeps all of it."
        )
    if mode == "pad" and inner != (width, height):
        edges = "left and right" if inner[0] < width else "top and bottom"
        notes.append(
            f"The picture's shape ({src_w} × {src_h}) is not the video's ({width} × {height}): "
            f"black bars are added at {edges}."
        )
    if mode == "stretch" and src_w * height != src_h * width:
        notes.append(f"The picture is stretched from {src_w} × {src_h} to {width} × {height}, which changes its shape.")
    return tuple(notes)


def _crop_box(size: tuple[int, int], width: int, height: int) -> tuple[float, float, float, float]:
    """The largest centred part of `size` that has the shape width : height, in source pixels."""
    src_w, src_h = size
    scale = max(width / src_w, height / src_h)
    part_w, part_h = min(width / scale, src_w), min(height / scale, src_h)
    left, top = (src_w - part_w) / 2, (src_h - part_h) / 2
    return left, top, left + part_w, top + part_h


def _inner_size(size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
    """The largest size of the shape of `size` that fits into width × height, at least one pixel a side."""
    src_w, src_h = size
    scale = min(width / src_w, height / src_h)
    return max(1, round(src_w * scale)), max(1, round(src_h * scale))
