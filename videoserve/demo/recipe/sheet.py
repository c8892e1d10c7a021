"""Contact sheets: some frames of each clip in a row, the true ones beside them."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

SHOWN = (0, 4, 8, 12, 16)
COMPARED = (8, 16)
CAPTION = 12


def write_sheet(file: Path, rows: list[tuple[str, NDArray[np.uint8], torch.Tensor]]) -> None:
    """Write rows of (caption, frames [F, H, W, 3], true clip float [3, F, H, W] in 0..1) as one PNG."""
    strips = []
    for caption, frames, true in rows:
        truth = (true.permute(1, 2, 3, 0).clamp(0, 1) * 255).byte().numpy()
        pictures = [frames[k] for k in SHOWN] + [truth[k] for k in COMPARED]
        strips.append((caption, np.concatenate(pictures, 1)))
    height = sum(strip.shape[0] + CAPTION for _, strip in strips)
    sheet = Image.new("RGB", (max(strip.shape[1] for _, strip in strips), height))
    pen, y = ImageDraw.Draw(sheet), 0
    for caption, strip in strips:
        pen.text((2, y), caption, fill=(255, 255, 0))
        sheet.paste(Image.fromarray(strip), (0, y + CAPTION))
        y += strip.shape[0] + CAPTION
    sheet.save(file)
