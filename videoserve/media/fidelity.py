"""How near a video came to a reference: what a cache cost it."""

from dataclasses import asdict, dataclass
from math import log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
# Wang et al. 2004 with their first window: 8×8 pixels of equal weight, at every place where it fits.
WINDOW = 8
PIXELS = WINDOW * WINDOW
LUMINANCE = (0.01 * 255) ** 2
CONTRAST = (0.03 * 255) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeness:
    """PSNR in decibels, None where not one value differs; SSIM, 1 where none does."""

    psnr_db: float | None
    ssim: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """A video against its reference; the first frame apart, because it is given and near in any case.

    `mean` is over the frames after the first: the PSNR of their mean squared error, and their mean SSIM. `worst` is the
    lowest of each and `worst_frames` where they are, counted from 0 on. These are None where there is one frame only.
    `motion` is the sum of squared changes from frame to frame by that of the reference: below 1 when motion froze; None
    when the reference stands still.
    """

    frames: int
    first: Likeness
    mean: Likeness | None
    worst: Likeness | None
    worst_frames: dict[str, int] | None
    motion: float | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def fidelity(frames: Frame, reference: Frame) -> Fidelity:
    """Both uint8 [F, H, W, 3] of one shape. ValueError when they are not, or smaller than 8×8 pixels."""
    if frames.shape != reference.shape or frames.ndim != 4 or not len(frames):
        raise ValueError(f"Frames {frames.shape} cannot be compared with a reference {reference.shape}.")
    if min(frames.shape[1:3]) < WINDOW:
        raise ValueError(
            f"Frames of {frames.shape[2]}×{frames.shape[1]} pixels are too small to compare: 8×8 at least."
        )
    errors = [squared_error(ours, theirs) for ours, theirs in zip(frames, reference, strict=True)]
    likenesses = [ssim(ours, theirs) for ours, theirs in zip(frames, reference, strict=True)]
    first = Likeness(psnr_db=decibels(errors[0]), ssim=likenesses[0])
    still = Fidelity(frames=len(frames), first=first, mean=None, worst=None, worst_frames=None, motion=None)
    return still if len(frames) == 1 else after_first(still, errors[1:], likenesses[1:], motion(frames, reference))


def after_first(still: Fidelity, errors: list[float], likenesses: list[float], moved: float | None) -> Fidelity:
    """The whole, from what each frame after the first has."""
    furthest, oddest = int(np.argmax(errors)), int(np.argmin(likenesses))
    return Fidelity(
        frames=still.frames,
        first=still.first,
        mean=Likeness(psnr_db=decibels(float(np.mean(errors))), ssim=float(np.mean(likenesses))),
        worst=Likeness(psnr_db=decibels(errors[furthest]), ssim=likenesses[oddest]),
        worst_frames={"psnr_db": 1 + furthest, "ssim": 1 + oddest},
        motion=moved,
    )


def squared_error(ours: Frame, theirs: Frame) -> float:
    """The mean squared difference of two frames."""
    difference = ours.astype(np.int32) - theirs
    return float(np.square(difference).mean())


def decibels(error: float) -> float | None:
    """The PSNR of a mean squared error of 8-bit values; None, for no end of it, of 0."""
    return None if error == 0 else 10 * log10(255**2 / error)


def ssim(ours: Frame, theirs: Frame) -> float:
    """The mean over all windows and the three channels of two frames [H, W, 3]."""
    a, b = ours.astype(np.int32), theirs.astype(np.int32)
    # Whole numbers to the end, so that equal frames have exactly 1.
    sum_a, sum_b = windows(a), windows(b)
    product, squares = sum_a * sum_b, sum_a * sum_a + sum_b * sum_b
    covariance = PIXELS * windows(a * b) - product
    variances = PIXELS * windows(a * a + b * b) - squares
    c1, c2 = PIXELS**2 * LUMINANCE, PIXELS**2 * CONTRAST
    likeness = ((2 * product + c1) * (2 * covariance + c2)) / ((squares + c1) * (variances + c2))
    return float(likeness.mean())


def windows(x: NDArray[np.int32]) -> NDArray[np.int32]:
    """The sum of every 8×8 window of [H, W, 3]: [H - 7, W - 7, 3]."""
    for width in (1, 2, 4):
        x = x[width:] + x[:-width]
        x = x[:, width:] + x[:, :-width]
    return x


def motion(frames: Frame, reference: Frame) -> float | None:
    """How much of the reference's motion there is."""
    ours, theirs = (
        sum(squared_error(clip[i], clip[i - 1]) for i in range(1, len(clip))) for clip in (frames, reference)
    )
    return None if theirs == 0 else ours / theirs
