"""Measure how a clip moves, and whether that is what its prompt asked for.

The measure knows nothing of the model: it looks for the one camera path (shift, zoom and rotation, each growing evenly
from the first frame to the last) whose warp of the first frame looks most like the later frames.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from videoserve.demo.recipe.motions import PAN, TURN, ZOOM
from videoserve.demo.recipe.motions import path_of as path_of_label
from videoserve.demo.words import label_of

Floats = NDArray[np.float32]
Vector = NDArray[np.float64]

# The search runs on pictures whose shorter side is at most this: motions are wide, detail is not needed.
SEARCH_SIDE = 64
# Shares of the clip at which frames are compared, and how many of the best starting points are refined.
LOOKS = (0.25, 0.5, 0.75, 1.0)
STARTS = 6
ROUNDS = 12
# A path that leaves fewer pixels than this share in view explains nothing.
LEAST_VIEW = 0.25
# A motion of one unit is the demo's normal speed.
UNITS = np.array([PAN["normal"], PAN["normal"], ZOOM["normal"], TURN["normal"]])
SEEN_FLOOR = 0.2
SEEN_SHARE = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """How the content moves over a whole clip.

    dx, dy in pixels (right and down positive), log_zoom (positive: it grows), rotation in radians, clockwise on the
    screen; psnr in dB between the clip and its first frame warped along that path, where that is in view.
    """

    dx: float
    dy: float
    log_zoom: float
    rotation: float
    psnr: float

    @property
    def strength(self) -> Vector:
        """(dx, dy, log_zoom, rotation) in units of the demo's normal speed."""
        strength: Vector = np.array([self.dx, self.dy, self.log_zoom, self.rotation]) / UNITS
        return strength

    @property
    def directions(self) -> tuple[int, int, int, int]:
        """Signs of (dx, dy, log_zoom, rotation), 0 for a part too weak to be seen.

        A part is seen when it reaches 0.2 of the demo's normal speed (24 px, log zoom 0.34, 18 degrees over the clip)
        and a third of the strongest part.
        """
        size = np.abs(self.strength)
        seen = np.sign(self.strength) * (size >= max(SEEN_FLOOR, SEEN_SHARE * float(size.max())))
        dx, dy, zoom, turn = (int(sign) for sign in seen)
        return dx, dy, zoom, turn

    @property
    def words(self) -> str:
        """The directions as prompts say them, the camera's for pans: "pan left", "zoom in, pan up", "static"."""
        dx, dy, zoom, turn = self.directions
        pans = [word for word in ({1: "up", -1: "down"}.get(dy), {1: "left", -1: "right"}.get(dx)) if word]
        parts = [
            {1: "zoom in", -1: "zoom out"}.get(zoom),
            "pan " + " and ".join(pans) if pans else None,
            {1: "rotate clockwise", -1: "rotate counterclockwise"}.get(turn),
        ]
        return ", ".join(part for part in parts if part) or "static"


def measure_motion(frames: NDArray[np.uint8]) -> Motion:
    """The motion of a clip, uint8 [F, H, W, 3] with at least two frames."""
    if frames.ndim != 4 or frames.shape[0] < 2 or frames.shape[3] != 3:
        raise ValueError(f"frames have the shape {list(frames.shape)}; a clip is [F, H, W, 3] with two frames or more.")
    scale = max(1, round(min(frames.shape[1:3]) / SEARCH_SIDE))
    looks = [round(share * (len(frames) - 1)) for share in LOOKS if round(share * (len(frames) - 1)) > 0]
    small = smooth(shrink(luma(frames[[0, *looks]]), scale))
    shares = [look / (len(frames) - 1) for look in looks]
    search = Search(small[0], small[1:], shares)
    starts = sorted(grid(scale), key=search.error)[:STARTS]
    best = min((search.refine(start) for start in starts), key=search.error)
    motion = best * np.array([scale, scale, 1, 1])
    whole = Search(luma(frames[:1])[0], luma(frames[1:]), [k / (len(frames) - 1) for k in range(1, len(frames))])
    square = whole.error(motion)
    return Motion(
        dx=float(motion[0]),
        dy=float(motion[1]),
        log_zoom=float(motion[2]),
        rotation=float(motion[3]),
        psnr=10 * math.log10(255**2 / max(square, 1e-3)),
    )


def expected_motion(prompt: str) -> Motion | None:
    """The motion the prompt's words ask for, at the demo's speeds (psnr infinite); None when no word says how."""
    label = label_of(prompt)
    if label is None:
        return None
    path = path_of_label(label)
    return Motion(dx=path.dx, dy=path.dy, log_zoom=path.log_zoom, rotation=path.rotation, psnr=math.inf)


def matches(prompt: str, motion: Motion) -> bool:
    """Whether a measured motion goes where the prompt says, whatever its speed.

    The parts that are seen (`Motion.directions`: at least 0.2 of the normal speed and a third of the strongest part)
    must be those the prompt names, each with its sign; for a prompt that asks for stillness none may be seen. Raises
    ValueError when the prompt names no motion.
    """
    expected = expected_motion(prompt)
    if expected is None:
        raise ValueError(f"The prompt {prompt!r} names no motion, so no clip can be measured against it.")
    return motion.directions == expected.directions


def luma(frames: NDArray[np.uint8]) -> Floats:
    """Brightness 0..255, float32 [F, H, W]."""
    return (frames.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)).astype(np.float32)


def shrink(frames: Floats, scale: int) -> Floats:
    """Average scale x scale blocks; rows and columns that do not fill a block are left out."""
    height, width = (side - side % scale for side in frames.shape[1:])
    blocks = frames[:, :height, :width].reshape(len(frames), height // scale, scale, width // scale, scale)
    averages: Floats = blocks.mean((2, 4))
    return averages


def smooth(frames: Floats) -> Floats:
    """Average every pixel with its neighbours."""
    padded = np.pad(frames, ((0, 0), (1, 1), (1, 1)), mode="edge")
    height, width = frames.shape[1:]
    shifted = [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    averages: Floats = np.mean(shifted, 0, dtype=np.float32)
    return averages


def grid(scale: int) -> Iterable[Vector]:
    """Paths the search starts from, in pixels of the shrunk picture: stillness, pans, zooms, turns and zoom + pan."""
    yield np.zeros(4)
    for pan, zoom, turn in itertools.product(
        (0, 10, 22, 38), (0, -0.4, -0.18, 0.18, 0.4), (0, -0.35, -0.15, 0.15, 0.35)
    ):
        if bool(pan) + bool(zoom) + bool(turn) not in (1, 2) or (pan and turn):
            continue
        for dx, dy in itertools.product((-1, 0, 1), repeat=2) if pan else [(0, 0)]:
            if dx or dy or not pan:
                yield np.array([dx * pan / scale, dy * pan / scale, zoom, turn])


class Search:
    """Compare the warps of a first frame [H, W] with later frames [K, H, W] at their shares of the clip."""

    def __init__(self, first: Floats, later: Floats, shares: list[float]) -> None:
        self.first, self.later, self.shares = first, later, shares
        height, width = first.shape
        self.y, self.x = np.mgrid[0:height, 0:width] - np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
        # One step of each parameter moves the outer pixels by about a tenth of a pixel.
        outer = min(height, width) / 2
        self.steps = np.array([0.1, 0.1, 0.1 / outer, 0.1 / outer])

    def residual(self, motion: Vector) -> tuple[Floats, NDArray[np.bool_]]:
        """(warped - later, in view), both [K, H, W]."""
        warped, seen = zip(*(self.warp(motion * share) for share in self.shares), strict=True)
        return np.stack(warped) - self.later, np.stack(seen)

    def error(self, motion: Vector) -> float:
        """Mean square of the residual over what is in view; infinite when nearly nothing is."""
        difference, seen = self.residual(motion)
        if seen.mean() < LEAST_VIEW:
            return math.inf
        return float(np.square(difference[seen], dtype=np.float64).mean())

    def warp(self, motion: Vector) -> tuple[Floats, NDArray[np.bool_]]:
        """The first frame after a whole `motion`, bilinear, and which pixels it has content for."""
        dx, dy, log_zoom, turn = motion
        cos, sin = math.cos(turn) / math.exp(log_zoom), math.sin(turn) / math.exp(log_zoom)
        height, width = self.first.shape
        x = cos * (self.x - dx) + sin * (self.y - dy) + (width - 1) / 2
        y = cos * (self.y - dy) - sin * (self.x - dx) + (height - 1) / 2
        seen = (x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)
        x, y = x.clip(0, width - 1.001), y.clip(0, height - 1.001)
        left, top = x.astype(np.intp), y.astype(np.intp)
        fx, fy = (x - left).astype(np.float32), (y - top).astype(np.float32)
        upper = self.first[top, left] * (1 - fx) + self.first[top, left + 1] * fx
        lower = self.first[top + 1, left] * (1 - fx) + self.first[top + 1, left + 1] * fx
        return upper * (1 - fy) + lower * fy, seen

    def refine(self, motion: Vector) -> Vector:
        """Levenberg-Marquardt from `motion` to the nearest minimum of the error."""
        error, damping = self.error(motion), 1e-2
        for _ in range(ROUNDS):
            difference, seen = self.residual(motion)
            slopes = [
                (self.residual(motion + step * axis)[0] - difference)[seen] / step
                for step, axis in zip(self.steps, np.eye(4), strict=True)
            ]
            jacobian = np.stack(slopes, 1).astype(np.float64)
            square, gradient = jacobian.T @ jacobian, jacobian.T @ difference[seen]
            move = np.linalg.solve(square + damping * np.diag(square.diagonal() + 1e-9), gradient)
            if (candidate := self.error(motion - move)) < error:
                motion, error, damping = motion - move, candidate, damping / 4
            else:
                damping *= 8
            if np.abs(move / self.steps).max() < 0.2:
                break
        return motion
