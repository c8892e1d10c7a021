"""One measured video and how it compares with the uncached one."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from videoserve.media.fidelity import Fidelity, fidelity

Frames = NDArray[np.uint8]
Family = Literal["schedule", "policies", "combined", "fewer steps", "floor", "diffusers", "cache-dit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Frames [F, H, W, 3]; seconds of the denoising alone and of everything; a letter a step.

    R: computed, r: for one branch only, .: skipped.
    """

    frames: Frames
    denoise_s: float
    whole_s: float
    letters: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A clip without its frames, against our uncached one; `own` is the uncached run of the pipeline that made it."""

    row: str
    family: Family
    case: str
    letters: str
    denoise_s: float
    whole_s: float
    base_denoise_s: float
    base_whole_s: float
    own_denoise_s: float
    mean_db: float | None
    worst_db: float | None
    first_db: float | None
    mean_ssim: float
    worst_ssim: float
    motion: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measured(row: str, family: Family, case: str, clip: Clip, base: Clip, own: Clip) -> Measured:
    """`base` is our uncached video, `own` the uncached one of the pipeline that made the clip."""
    found: Fidelity = fidelity(clip.frames, base.frames)
    assert found.mean is not None
    assert found.worst is not None
    return Measured(
        row=row,
        family=family,
        case=case,
        letters=clip.letters,
        denoise_s=clip.denoise_s,
        whole_s=clip.whole_s,
        base_denoise_s=base.denoise_s,
        base_whole_s=base.whole_s,
        own_denoise_s=own.denoise_s,
        mean_db=found.mean.psnr_db,
        worst_db=found.worst.psnr_db,
        first_db=found.first.psnr_db,
        mean_ssim=found.mean.ssim,
        worst_ssim=found.worst.ssim,
        motion=found.motion,
    )
