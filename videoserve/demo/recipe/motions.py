"""What a camera can do in a clip: labels, their sizes, and the affine path of each frame."""

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAMES = 17
SPEEDS = ("slow", "normal", "fast")
# Over the 16 intervals of a clip: pixels (at every resolution, so the same in tokens), log scale, radians.
PAN = {"slow": 11.0, "normal": 24.0, "fast": 42.0}
ZOOM = {"slow": 0.16, "normal": 0.34, "fast": 0.60}
TURN = {"slow": math.radians(8), "normal": math.radians(18), "fast": math.radians(34)}
JITTER = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A motion in words: `right`, `down`, `zoom` (in) and `turn` (clockwise) are -1, 0 or 1; right and down move the
    camera, turn turns the picture. `generic` marks a prompt without any motion word: a slow zoom in."""

    right: int = 0
    down: int = 0
    zoom: int = 0
    turn: int = 0
    speed: str = "normal"
    generic: bool = False

    @property
    def pans(self) -> bool:
        return bool(self.right or self.down)

    @property
    def static(self) -> bool:
        return not (self.pans or self.zoom or self.turn)

    @property
    def kind(self) -> str:
        """The class that held-out figures are given for."""
        if self.zoom and (self.pans or self.turn):
            return "zoom + pan" if self.pans else "zoom + rotation"
        if self.pans:
            return "diagonal" if self.right and self.down else "pan"
        return "zoom" if self.zoom else "rotation" if self.turn else "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraPath:
    """How the content moves over a whole clip: dx, dy in pixels (x right, y down), log_zoom, rotation in radians
    clockwise on the screen. Every frame has its linear share."""

    dx: float = 0.0
    dy: float = 0.0
    log_zoom: float = 0.0
    rotation: float = 0.0


def sample_label(rng: random.Random) -> Label:
    """Draw the motion of a training clip."""
    speed = rng.choices(SPEEDS, [0.27, 0.46, 0.27])[0]
    side = rng.choice([-1, 1])
    right, down = (side, 0) if rng.random() < 0.5 else (0, side)
    zoom, turn = rng.choice([-1, 1]), rng.choice([-1, 1])
    share = rng.random()
    if share < 0.33:
        return Label(right=right, down=down, speed=speed)
    if share < 0.42:
        return Label(right=side, down=rng.choice([-1, 1]), speed=speed)
    if share < 0.60:
        return Label(zoom=zoom, speed=speed)
    if share < 0.72:
        return Label(turn=turn, speed=speed)
    if share < 0.86:
        return Label(right=right, down=down, zoom=zoom, speed=speed)
    if share < 0.91:
        return Label(zoom=zoom, turn=turn, speed=speed)
    if share < 0.95:
        return Label()
    return Label(zoom=1, speed="slow", generic=True)


def path_of(label: Label, rng: random.Random | None = None) -> CameraPath:
    """The path of a label, each part jittered by up to 5 % when `rng` is given. Content moves against the camera."""

    def size(sign: int, unit: float) -> float:
        return sign * unit * (1.0 if rng is None else rng.uniform(1 - JITTER, 1 + JITTER))

    combined = bool(label.zoom and (label.pans or label.turn))
    pan = PAN[label.speed] * (0.8 if combined else 0.75 if label.right and label.down else 1.0)
    zoom = ZOOM[label.speed] * (0.8 if combined else 1.0)
    turn = TURN[label.speed] * (0.8 if combined else 1.0)
    return CameraPath(
        dx=size(-label.right, pan),
        dy=size(-label.down, pan),
        log_zoom=size(label.zoom, zoom),
        rotation=size(label.turn, turn),
    )


def affines(path: CameraPath, frames: int = FRAMES) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Per frame (A [2, 2], b [2]): the pixel at offset p from the centre shows the first frame's point A p + b.

    A content point q moves to p = s R q + d, with R clockwise on a screen whose y axis points down.
    """
    steps = []
    for frame in range(frames):
        share = frame / (FRAMES - 1)
        cos, sin = math.cos(path.rotation * share), math.sin(path.rotation * share)
        inverse = np.array([[cos, sin], [-sin, cos]]) / math.exp(path.log_zoom * share)
        steps.append((inverse, -inverse @ np.array([path.dx * share, path.dy * share])))
    return steps
