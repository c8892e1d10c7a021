"""Still pictures that stand for a video: one frame, and a grid of frames."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_THUMBNAIL_SIDE = 512
_CELL_SIDE = 256
_COLUMNS = 4
_CELLS = 16


def thumbnail(frames: NDArray[np.uint8]) -> bytes:
    """The first frame of uint8 [F, H, W, 3] as WebP, its longer side at most 512 pixels.

    The first one, so that a page may show it until the video starts and nothing jumps when it does.
    """
    return _encode(_shrunk(frames[0], _THUMBNAIL_SIDE), "WEBP")


def spritesheet(frames: NDArray[np.uint8]) -> bytes:
    """Up to 16 evenly spaced frames of uint8 [F, H, W, 3] as one JPEG, in rows of 4, read like text.

    The first and the last frame are always among them. A frame's longer side is at most 256 pixels; cells that are
    left over in the last row are black.
    """
    chosen = np.unique(np.linspace(0, len(frames) - 1, _CELLS).round().astype(int))
    cells = [_shrunk(frames[index], _CELL_SIDE) for index in chosen]
    width, height = cells[0].size
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "black")
    for index, cell in enumerate(cells):
        row, column = divmod(index, columns)
        sheet.paste(cell, (column * width, row * height))
    return _encode(sheet, "JPEG")


def _shrunk(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    picture = Image.fromarray(pixels)
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture


def _encode(picture: Image.Image, kind: str) -> bytes:
    out = BytesIO()
    picture.save(out, kind, quality=85)
    return out.getvalue()
