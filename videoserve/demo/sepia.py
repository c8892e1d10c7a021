"""Measure how far a clip has become a sepia print, whatever moves in it.

The colours of a sepia print lie on one line, from dark brown to a warm white. A frame's distance from sepia is how far
its pixels lie from that line, in the mean; how sepia it is, how much of the first frame's distance is gone.
"""

import numpy as np
from numpy.typing import NDArray

# A point of the line is any multiple of TONE and TINT on top, of 255.
TONE = np.array([1.08, 0.86, 0.62])
TINT = np.array([12.75, 5.1, 0.0])


def sepia_shares(frames: NDArray[np.uint8]) -> NDArray[np.float64]:
    """How sepia each frame of a clip [F, H, W, 3] is: 0 as little as the first frame, 1 a sepia print."""
    distances = np.array([distance(frame) for frame in frames])
    shares: NDArray[np.float64] = 1 - distances / distances[0]
    return shares


def distance(frame: NDArray[np.uint8]) -> float:
    """Mean distance of the pixels of a frame [H, W, 3] from the line, in steps of 255."""
    colours = frame - TINT
    along = colours @ TONE / (TONE @ TONE)
    return float(np.linalg.norm(colours - along[..., None] * TONE, axis=-1).mean())
