"""Stage three: latents to frames, and the check that there is a picture in them."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from videoserve.errors import JobFailed
from videoserve.video.load import Components

Frames = NDArray[np.uint8]

# Levels of 255 within which a picture that is meant to be one colour may vary: JPEG leaves a few.
FLAT_PICTURE = 8
# A failed generation is one colour to the last level; two of them may differ by rounding.
FLAT_FRAME = 1


def decode(components: Components, latents: Tensor) -> Iterator[Frames]:
    """Finished latents [1, C, F, H, W] to uint8 frames [F', H, W, 3], a latent frame at a time, as they are asked for.

    So that a job can be left between two pieces. Raises JobFailed when the decoder's output is not finite. The rounding
    is that of diffusers' VideoProcessor.
    """
    for piece in components.vae.pieces(latents, most=1):
        yield to_frames(piece[0])


@torch.inference_mode()
def to_frames(video: Tensor) -> Frames:
    """Decoded [3, F, H, W] in -1..1 to uint8 [F, H, W, 3]. Raises JobFailed when it is not finite."""
    if not bool(video.isfinite().all()):
        raise JobFailed("numerical_error", "The decoder gave numbers that are not finite, after the last step.")
    pixels = (video.float() * 0.5 + 0.5).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
    frames: Frames = pixels.permute(1, 2, 3, 0).contiguous().cpu().numpy()
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
