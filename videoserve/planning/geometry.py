"""Width, height, frames and frame rate: what a model can make nearest to what was asked."""

import math
import re

from videoserve.errors import InvalidField
from videoserve.planning.adjustments import Adjustments
from videoserve.planning.card import ModelCard
from videoserve.planning.limits import LIMITS
from videoserve.types import VideoRequest

_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})", re.ASCII | re.IGNORECASE)


def frame_size(
    request: VideoRequest, card: ModelCard, image_size: tuple[int, int], adjustments: Adjustments
) -> tuple[int, int]:
    """(width, height) in pixels. Without a size asked: the one whose aspect is nearest to the picture's."""
    asked = _asked_size(request)
    if asked is None:
        return _size_for(image_size, card)
    if not (asked[0] in LIMITS["width"] and asked[1] in LIMITS["height"]):
        raise InvalidField("size", f"size is {asked[0]}x{asked[1]}; a side is from 1 to {LIMITS['width'].high} pixels.")
    used = nearest_size(asked, card.multiple)
    if used != asked:
        adjustments.change(
            "size",
            f"size is {asked[0]}x{asked[1]}; this model makes multiples of {_multiples(card)}: "
            f"{used[0]}x{used[1]} is used.",
        )
    return used


def frames_and_rate(request: VideoRequest, card: ModelCard, adjustments: Adjustments) -> tuple[int, int]:
    """(frames, frames per second) from whichever of seconds, num_frames and fps were said."""
    if request.num_frames is None:
        fps = request.fps or card.fps
        if request.seconds is None:
            return card.num_frames, fps
        return _frames_for(request.seconds, fps, card, adjustments), fps
    frames = snap_frames(request.num_frames, card.temporal_stride)
    if frames != request.num_frames:
        adjustments.change(
            "num_frames",
            f"num_frames is {request.num_frames}; this model makes {card.temporal_stride}k + 1 frames: "
            f"{frames} are used.",
        )
    if request.seconds is None:
        return frames, request.fps or card.fps
    return frames, _rate_for(request.seconds, frames, request.fps, card, adjustments)


def snap_frames(frames: int, stride: int) -> int:
    """The nearest stride * k + 1, the lower of two as near: what diffusers' pipelines do."""
    return frames // stride * stride + 1


def nearest_size(asked: tuple[int, int], multiple: tuple[int, int]) -> tuple[int, int]:
    """The allowed size that changes aspect and sides least together; the smaller of two as near."""
    width, height = asked

    def cost(size: tuple[int, int]) -> tuple[int, int]:
        # Aspect, width and height errors, each relative and times width * height, so that they stay whole numbers.
        aspect = abs(size[0] * height - size[1] * width)
        sides = abs(size[0] - width) * height + abs(size[1] - height) * width
        return aspect + sides, size[0] * size[1]

    columns, rows = (_around(side, step) for side, step in zip(asked, multiple, strict=True))
    return min(((column, row) for column in columns for row in rows), key=cost)


def _around(side: int, step: int) -> tuple[int, int]:
    lower = max(side // step * step, step)
    return lower, max(math.ceil(side / step) * step, step)


def _asked_size(request: VideoRequest) -> tuple[int, int] | None:
    sides = None
    if (request.width is None) != (request.height is None):
        missing, said = ("height", "width") if request.height is None else ("width", "height")
        raise InvalidField(missing, f"{said} is given without {missing}: give both, or size.")
    if request.width is not None and request.height is not None:
        sides = (request.width, request.height)
    if request.size is None:
        return sides
    match = _SIZE.fullmatch(request.size)
    if match is None:
        raise InvalidField("size", f"size is {request.size!r}; it must be WIDTHxHEIGHT in pixels, like 832x480.")
    size = (int(match[1]), int(match[2]))
    if sides not in (None, size):
        raise InvalidField("size", f"size is {request.size} but width and height say {sides[0]}x{sides[1]}.")
    return size


def _size_for(image_size: tuple[int, int], card: ModelCard) -> tuple[int, int]:
    aspect = image_size[0] / image_size[1]
    if card.sizes:
        return min(card.sizes, key=lambda size: abs(math.log(size[0] / size[1] / aspect)))
    ideal = (math.sqrt(card.area * aspect), math.sqrt(card.area / aspect))
    # Down, never up: the area is what the model was trained for at most. As in the example of diffusers' pipeline.
    width, height = (max(round(side) // step * step, step) for side, step in zip(ideal, card.multiple, strict=True))
    return width, height


def _frames_for(seconds: float, fps: int, card: ModelCard, adjustments: Adjustments) -> int:
    asked = seconds * fps
    most = LIMITS["num_frames"].high
    if asked > most:
        raise InvalidField("seconds", f"seconds is {seconds:g}, {asked:g} frames at {fps} fps; at most {most}.")
    frames = snap_frames(max(round(asked), 1), card.temporal_stride)
    if frames != asked:
        adjustments.change(
            "seconds",
            f"seconds is {seconds:g}, {asked:g} frames at {fps} fps; this model makes {card.temporal_stride}k + 1 "
            f"frames: {frames} are used, {frames / fps:g} seconds.",
        )
    return frames


def _rate_for(seconds: float, frames: int, fps: int | None, card: ModelCard, adjustments: Adjustments) -> int:
    used = fps or max(round(frames / seconds), 1)
    most = LIMITS["fps"].high
    if used > most:
        raise InvalidField("seconds", f"seconds is {seconds:g}, {frames} frames at {used} fps; at most {most} fps.")
    if abs(frames - seconds * used) > card.temporal_stride and fps is not None:
        raise InvalidField(
            "seconds",
            f"seconds is {seconds:g}, but {frames} frames at {fps} fps last {frames / fps:g}: "
            f"leave out seconds, num_frames or fps.",
        )
    if frames != seconds * used:
        adjustments.change(
            "seconds",
            f"seconds is {seconds:g}; {frames} frames at {used} fps, a whole number, last {frames / used:g} seconds.",
        )
    return used


def _multiples(card: ModelCard) -> str:
    width, height = card.multiple
    return str(width) if width == height else f"{width} by {height}"
