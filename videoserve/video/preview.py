"""A look at unfinished latents without the VAE: a linear map to colours, fitted when the model is loaded."""

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from videoserve.video.load import Components

# The shorter side of a preview, at least.
SIDE = 128
FRAMES = 3
# Pictures that the map is fitted on, and their side in latents.
PATTERNS = 8
PATTERN_SIDE = 12


class Preview:
    """weights [C + 1, 3], the last row for the constant: normalised latents to colours in -1..1."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    @classmethod
    def fit(cls, components: Components) -> "Preview":
        """By least squares, between the latents of made-up pictures and the mean colours of their blocks."""
        factor = components.layout.spatial_factor
        pictures = patterns(PATTERN_SIDE * factor).to(components.device)
        with torch.inference_mode():
            # One at a time: a picture is a video of one frame, and the encoder's memory stays small.
            latents = torch.cat([components.vae.encode(picture[None, :, None]) for picture in pictures])[:, :, 0]
        colours = functional.avg_pool2d(pictures, factor)
        known = with_constant(latents.movedim(1, -1).flatten(0, 2).float().cpu())
        wanted = colours.movedim(1, -1).flatten(0, 2).cpu()
        return cls(torch.linalg.lstsq(known.double(), wanted.double()).solution.float())

    def colours(self, latents: Tensor) -> Tensor:
        """Latents [C, H, W] to uint8 [H, W, 3]."""
        flat = with_constant(latents.movedim(0, -1).float().cpu()) @ self.weights
        return (flat * 0.5 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)

    def jpeg(self, latents: Tensor) -> bytes:
        """First, middle and last latent frame of [1, C, F, H, W] side by side, enlarged to SIDE pixels or more."""
        count = latents.shape[2]
        shown = sorted({0, count // 2, count - 1})[:FRAMES]
        strip = torch.cat([self.colours(latents[0, :, frame]) for frame in shown], dim=1).numpy()
        scale = -(-SIDE // min(latents.shape[3:]))
        picture = Image.fromarray(np.ascontiguousarray(strip))
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.BICUBIC)
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=80)
        return out.getvalue()

    def event_data(self, latents: Tensor, step: int) -> dict[str, object]:
        """The data of a preview event."""
        encoded = base64.b64encode(self.jpeg(latents)).decode("ascii")
        return {"step": step, "media_type": "image/jpeg", "base64": encoded}


def with_constant(rows: Tensor) -> Tensor:
    """[..., C] to [..., C + 1] with ones at the end."""
    return torch.cat((rows, rows.new_ones(*rows.shape[:-1], 1)), dim=-1)


def patterns(side: int) -> Tensor:
    """Smooth random colour fields, from coarse to fine, [PATTERNS, 3, side, side] in -1..1; always the same."""
    generator = torch.Generator().manual_seed(0)
    pictures = []
    for index in range(PATTERNS):
        cells = 3 + 2 * index
        field = torch.randn((1, 3, cells, cells), generator=generator)
        smooth = functional.interpolate(field, size=(side, side), mode="bicubic", align_corners=False)
        grey = torch.randn((1, 3, 1, 1), generator=generator) * 0.3
        pictures.append((smooth * 0.45 + grey).clamp(-1, 1))
    return torch.cat(pictures)
