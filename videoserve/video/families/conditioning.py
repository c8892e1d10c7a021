"""How the image enters the denoising: what the VAE encodes, and what the transformer sees beside the latents."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.planning.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """The fixed part of the transformer's input, one row a job.

    `fixed` is [B, C, 1, H, W], the first frame's latents, when `clean_first_frame`; else [B, T + C, F, H, W], a mask
    of T channels (1 where a frame is given) and the latents of the given frames among grey ones.
    """

    fixed: Tensor
    clean_first_frame: bool

    def model_input(self, latents: Tensor) -> Tensor:
        """Latents [B, C, F, H, W] to what the transformer takes, [B, C_in, F, H, W]."""
        if self.clean_first_frame:
            return torch.cat((self.fixed.to(latents.dtype), latents[:, :, 1:]), dim=2)
        return torch.cat((latents, self.fixed.to(latents.dtype)), dim=1)

    def finish(self, latents: Tensor) -> Tensor:
        """Latents [B, C, F, H, W] after the last step to those that are decoded."""
        return self.model_input(latents) if self.clean_first_frame else latents

    @staticmethod
    def stack(jobs: Sequence["Conditioning"]) -> "Conditioning":
        """The conditionings of same-shape jobs as one batch, in their order."""
        fixed = torch.cat([job.fixed for job in jobs])
        return Conditioning(fixed=fixed, clean_first_frame=jobs[0].clean_first_frame)


def conditioning_video(layout: Layout, image: Tensor, last_image: Tensor | None, frames: int) -> Tensor:
    """What the VAE encodes: image and last_image [B, 3, H, W] in -1..1 to [B, 3, F', H, W].

    F' is 1 when the first frame alone matters, else `frames`, grey between the given ones. ValueError when the layout
    does not take what is given.
    """
    if last_image is None and layout.last_image == "required":
        raise ValueError(f"This {layout.name} model moves between two pictures: it needs a last image too.")
    if last_image is not None and layout.last_image == "never":
        raise ValueError(f"This {layout.name} model takes no last image.")
    first = image.unsqueeze(2)
    if layout.clean_first_frame:
        return first
    end = [] if last_image is None else [last_image.unsqueeze(2)]
    between = first.new_zeros(*first.shape[:2], frames - 1 - len(end), *first.shape[3:])
    return torch.cat((first, between, *end), dim=2)


def build_conditioning(layout: Layout, image_latents: Tensor, frames: int, *, last_image: bool) -> Conditioning:
    """The conditioning from the normalised latents [B, C, F', H, W] of `conditioning_video` for `frames` frames."""
    if layout.clean_first_frame:
        return Conditioning(fixed=image_latents, clean_first_frame=True)
    given = torch.zeros(frames)
    given[0] = 1
    if last_image:
        given[-1] = 1
    # The first frame fills a latent frame of its own, so it counts temporal_factor times.
    repeated = torch.cat((given[:1].expand(layout.temporal_factor), given[1:]))
    mask = repeated.view(-1, layout.temporal_factor).T.to(image_latents)  # [T, F]
    batch, _, _, height, width = image_latents.shape
    mask = mask[None, :, :, None, None].expand(batch, -1, -1, height, width)
    return Conditioning(fixed=torch.cat((mask, image_latents), dim=1), clean_first_frame=False)
