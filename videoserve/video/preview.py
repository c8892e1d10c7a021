"""A look at unfinished latents without the VAE: a linear map to colours, fitted when the model is loaded."""

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from videoserve.video.load import Components
from videoserve.video.memo import Memo

# The shorter side of a preview, at least.
SIDE = 128
# Pictures that the map is fitted on, and their side in latents.
PATTERNS = 8
PATTERN_SIDE = 12


class Preview:
    """Two maps of normalised latents to colours in -1..1, each [C + 1, 3] with a last row for the constant.

    `first` is for the first latent frame, which holds one picture, `later` for the others, which hold several.
    """

    def __init__(self, first: Tensor, later: Tensor) -> None:
        self.first = first
        self.later = later

    @classmethod
    def fit(cls, components: Components) -> "Preview":
        """By least squares, between the latents of made-up still clips and the mean colours of their blocks."""
        layout = components.layout
        pictures = patterns(PATTERN_SIDE * layout.spatial_factor).to(components.device)
        with torch.inference_mode():
            # One at a time keeps the encoder's memory small.
            clips = [picture[None, :, None].expand(-1, -1, 1 + layout.temporal_factor, -1, -1) for picture in pictures]
            latents = torch.cat([components.vae.encode(clip) for clip in clips])
            colours = functional.avg_pool2d(pictures, layout.spatial_factor)
        return cls(least_squares(latents[:, :, 0], colours), least_squares(latents[:, :, 1], colours))

    @classmethod
    def remembered(cls, components: Components, memo: Memo) -> "Preview":
        """As fitted by an earlier process, or fitted now: it takes longer than to load a small model."""
        key = f"preview 1 {components.digest} {components.config}"
        known = memo.get(key)
        if known is not None:
            return cls(*(torch.tensor(rows) for rows in known))
        fitted = cls.fit(components)
        memo.keep(key, [fitted.first.tolist(), fitted.later.tolist()])
        return fitted

    def colours(self, latents: Tensor, frame: int) -> Tensor:
        """One latent frame [C, H, W] to uint8 [H, W, 3]."""
        flat = with_constant(latents.movedim(0, -1).float().cpu()) @ (self.later if frame else self.first)
        return (flat * 0.5 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)

    def jpeg(self, latents: Tensor) -> bytes:
        """First, middle and last latent frame of [1, C, F, H, W] side by side, enlarged to SIDE pixels or more."""
        count = latents.shape[2]
        shown = sorted({0, count // 2, count - 1})
        strip = torch.cat([self.colours(latents[0, :, frame], frame) for frame in shown], dim=1).numpy()
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


def least_squares(latents: Tensor, colours: Tensor) -> Tensor:
    """The map [C + 1, 3] that takes latents [B, C, H, W] nearest to colours [B, 3, H, W]."""
    known = with_constant(latents.movedim(1, -1).flatten(0, 2).double().cpu())
    wanted = colours.movedim(1, -1).flatten(0, 2).double().cpu()
    fitted: Tensor = torch.linalg.lstsq(known, wanted).solution.float()
    return fitted


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
