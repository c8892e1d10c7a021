"""Stage three: latents to frames, and the check that there is a picture in them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from videoserve.errors import JobFailed
from videoserve.video.families.vae import WanVae
from videoserve.video.load import Components
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.rows import Rows

Frames = NDArray[np.uint8]

# Levels of 255 within which a picture that is meant to be one colour may vary: JPEG leaves a few.
FLAT_PICTURE = 8
# A failed generation is one colour to the last level; two of them may differ by rounding.
FLAT_FRAME = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Some rows of a piece of a clip: pixels uint8 [F, h, W, 3]; `finite` is 1 or 0, []."""

    pixels: Tensor
    finite: Tensor


def decode(components: Components, latents: Tensor, job_id: str) -> Iterator[Frames]:
    """Finished latents [1, C, F, H, W] to uint8 frames [F', H, W, 3], a latent frame at a time, as they are asked for.

    So that a job can be left between two pieces. All ranks draw each piece together, as a clip of this name. Raises
    JobFailed when the decoder's output is not finite.
    """
    ranks = components.ranks
    drawing = draw(components.vae, latents, ranks.world)
    for number in range(pieces_of(latents)):
        with ranks.decode(job_id, latents if number == 0 else None):
            bands = next(drawing)
        yield assembled(bands)


def pieces_of(latents: Tensor) -> int:
    """How many pieces a clip is decoded in: the first latent frame, which is one picture, comes with the second."""
    return max(1, latents.shape[2] - 1)


@torch.inference_mode()
def draw(vae: WanVae, latents: Tensor, mesh: Mesh) -> Iterator[list[Band]]:
    """A clip piece by piece, by all ranks of the mesh alike, each its band of rows; rank 0 gets all bands."""
    rows = Rows(mesh, latents.shape[3])
    if rows.here.start == rows.here.stop:
        for _ in range(pieces_of(latents)):
            rows.collect(torch.empty(0, dtype=torch.uint8, device=mesh.device), ())
            yield []
        return
    for piece in vae.pieces(latents, most=1, rows=rows):
        mine = packed(piece[0])
        row = (mine.numel() - 1) // rows.sizes[mesh.world.index]
        sizes = [size * row + 1 if size else 0 for size in rows.sizes]
        width = piece.shape[-1]
        yield [unpacked(flat, piece.shape[2], width) for flat in rows.collect(mine, sizes) if flat.numel()]


def packed(video: Tensor) -> Tensor:
    """Decoded [3, F, H, W] in -1..1 as bytes: the pixels [F, H, W, 3], then a 1 if every number was finite, else a 0.

    The rounding is that of diffusers' VideoProcessor.
    """
    pixels = (video.float() * 0.5 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    return torch.cat((pixels.permute(1, 2, 3, 0).flatten(), video.isfinite().all().to(torch.uint8).view(1)))


def unpacked(flat: Tensor, frames: int, width: int) -> Band:
    return Band(pixels=flat[:-1].view(frames, -1, width, 3), finite=flat[-1])


def assembled(bands: Sequence[Band]) -> Frames:
    """The pictures [F, H, W, 3] of bands in order. Raises JobFailed when one is not finite."""
    if not all(bool(band.finite) for band in bands):
        raise JobFailed("numerical_error", "The decoder gave numbers that are not finite, after the last step.")
    frames: Frames = torch.cat([band.pixels for band in bands], dim=1).cpu().numpy()
    return frames


def is_flat(picture: NDArray[np.uint8], tolerance: int = FLAT_PICTURE) -> bool:
    """Whether a picture [H, W, 3] is one colour, within `tolerance` levels a channel."""
    spread = picture.max(axis=(0, 1)).astype(int) - picture.min(axis=(0, 1))
    return bool((spread <= tolerance).all())


def check_picture(frames: Frames, *, flat_picture: bool) -> None:
    """Raises JobFailed when every frame that was generated is one colour, unless the picture asked for that.

    The first frame does not count where there are others: it repeats the picture given.
    """
    generated = frames[1:] if len(frames) > 1 else frames
    if not flat_picture and all(is_flat(frame, FLAT_FRAME) for frame in generated):
        raise JobFailed("numerical_error", f"All {len(frames)} frames came out as one plain colour; nothing was drawn.")
