"""The range of every numeric field of a request. One table: plans check it, the OpenAPI description shows it."""

from dataclasses import dataclass

from videoserve.errors import InvalidField
from videoserve.types import VideoRequest


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`, both allowed."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


SEED_MAX = 2**64 - 1

# The upper ends are beyond any model; they keep a slip of the keyboard from becoming a job.
LIMITS = {
    "seconds": Range(0.01, 3600),
    "width": Range(1, 16384),
    "height": Range(1, 16384),
    "num_frames": Range(1, 10_001),
    "fps": Range(1, 240),
    "num_inference_steps": Range(1, 1000),
    "guidance_scale": Range(0, 100),
    "guidance_scale_2": Range(0, 100),
    "flow_shift": Range(0.01, 100),
    "boundary_ratio": Range(0, 1),
    "seed": Range(-1, SEED_MAX),
    "priority": Range(-100, 100),
    "deadline_s": Range(0.01, 30 * 24 * 3600),
}


def check_pixels(request: VideoRequest, size: tuple[int, int], frames: int, most: int) -> None:
    """Raises InvalidField when a video of (width, height) `size` and `frames` has more than `most` pixels in all.

    Time and memory grow with their number at least in proportion: a worker that dies of one video dies of every
    attempt at it.
    """
    width, height = size
    pixels = width * height * frames
    if pixels > most:
        longer = "num_frames" if request.num_frames is not None else "seconds"
        larger = request.size is not None or request.width is not None
        raise InvalidField(
            "size" if larger else longer,
            f"{width}x{height} and {frames} frames are {pixels} pixels; at most {most}: "
            f"ask for a smaller size or fewer frames.",
        )


def check_ranges(request: VideoRequest) -> None:
    """Raises InvalidField for the first number out of its range."""
    for name, limit in LIMITS.items():
        value = getattr(request, name)
        # Written so that NaN fails as well.
        if value is not None and value not in limit:
            raise InvalidField(name, f"{name} is {value}; it is from {limit.low} to {limit.high}.")
