"""Measure how far each ring of a clip has turned about the middle of the picture: a swirl turns the inner ones more.

The measure knows nothing of any model: for every ring it looks for the one angle, growing evenly from the first frame
to the last, by which the first frame's ring has to be turned to look most like the later frames' rings. It takes the
camera to stand: a zoom moves what the outer rings show.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Inner and outer radius of each ring, in halves of the shorter side.
RINGS = ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9))
RADII = 8
DIRECTIONS = 180
# Shares of the clip at which frames are compared.
LOOKS = (0.25, 0.5, 0.75, 1.0)
ANGLES = np.linspace(-2.4, 2.4, 97)


def turns(frames: NDArray[np.uint8]) -> tuple[float, ...]:
    """Radians, clockwise on the screen, that each of RINGS turns over a clip [F, H, W, 3]; the innermost first."""
    looks = [round(share * (len(frames) - 1)) for share in LOOKS]
    shares = [look / (len(frames) - 1) for look in looks]
    return tuple(turn([ring(frames[look], *radii) for look in (0, *looks)], shares) for radii in RINGS)


def ring(frame: NDArray[np.uint8], inner: float, outer: float) -> Floats:
    """The colours [RADII, DIRECTIONS, 3] of a frame between two radii, bilinear; directions go round clockwise."""
    height, width = frame.shape[:2]
    radii = np.linspace(inner, outer, RADII)[:, None] * min(height, width) / 2
    directions = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS
    x = (width - 1) / 2 + radii * np.cos(directions)
    y = (height - 1) / 2 + radii * np.sin(directions)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    fx, fy = (x - left)[..., None], (y - top)[..., None]
    upper = frame[top, left] * (1 - fx) + frame[top, left + 1] * fx
    lower = frame[top + 1, left] * (1 - fx) + frame[top + 1, left + 1] * fx
    colours: Floats = upper * (1 - fy) + lower * fy
    return colours


def turn(rings: list[Floats], shares: list[float]) -> float:
    """The angle by which the first of `rings` explains the others best, each of which has its share of it."""
    first, later = rings[0], rings[1:]
    errors = [
        sum(np.square(turned(first, angle * share) - seen).sum() for seen, share in zip(later, shares, strict=True))
        for angle in ANGLES
    ]
    return float(ANGLES[int(np.argmin(errors))])


def turned(colours: Floats, angle: float) -> Floats:
    """A ring after it has turned clockwise."""
    steps = angle * DIRECTIONS / (2 * np.pi)
    whole = int(np.floor(steps))
    part = steps - whole
    turned: Floats = np.roll(colours, whole, 1) * (1 - part) + np.roll(colours, whole + 1, 1) * part
    return turned
