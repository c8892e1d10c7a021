"""The comparison as a picture: speed-up against fidelity, drawn with Pillow."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from videoserve.local.pareto.clip import Family
from videoserve.local.pareto.report import Line

WIDTH, HEIGHT = 1800, 860
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 120, 150
GAP = 80
COLOURS: dict[Family, str] = {
    "schedule": "#c0392b",
    "combined": "#e67e22",
    "policies": "#8e44ad",
    "fewer steps": "#2c3e50",
    "diffusers": "#2980b9",
    "cache-dit": "#27ae60",
}
NAMES: dict[Family, str] = {
    "schedule": "videoserve: schedule",
    "combined": "videoserve: fewer steps and schedule",
    "policies": "videoserve: other policies",
    "fewer steps": "fewer steps",
    "diffusers": "diffusers' hooks",
    "cache-dit": "cache-dit",
}
JOINED: tuple[Family, ...] = ("schedule", "fewer steps")
SPEEDS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5)

Value = Callable[[Line], float | None]


class Panel:
    """One pair of axes: speed-up to the right, decibels upwards."""

    def __init__(self, pen: ImageDraw.ImageDraw, left: int, right: int, least: float, most: float) -> None:
        self._pen = pen
        self._box = (left, TOP, right, HEIGHT - BOTTOM)
        self._range = least, most

    def place(self, speed: float, decibels: float) -> tuple[float, float]:
        left, top, right, bottom = self._box
        least, most = self._range
        across = (speed - SPEEDS[0]) / (SPEEDS[-1] - SPEEDS[0])
        return left + across * (right - left), bottom - (decibels - least) / (most - least) * (bottom - top)

    def axes(self, title: str) -> None:
        """Frame, grid and numbers."""
        left, top, right, bottom = self._box
        least, most = self._range
        for decibels in range(int(least), int(most) + 1, 5):
            _, y = self.place(1, decibels)
            self._pen.line([(left, y), (right, y)], fill="#e3e3e3")
            self._pen.text((left - 12, y), str(decibels), fill="#444444", font=font(20), anchor="rm")
        for speed in SPEEDS:
            x, _ = self.place(speed, least)
            self._pen.line([(x, top), (x, bottom)], fill="#e3e3e3")
            self._pen.text((x, bottom + 10), f"{speed:g}x", fill="#444444", font=font(20), anchor="mt")
        self._pen.rectangle(self._box, outline="#888888")
        self._pen.text((left, top - 14), title, fill="#222222", font=font(22), anchor="ls")
        said = "denoising speed-up, each against the uncached run of its own pipeline"
        self._pen.text(((left + right) / 2, bottom + 44), said, fill="#444444", font=font(20), anchor="mt")

    def series(self, points: Sequence[tuple[float, float]], colour: str, *, joined: bool) -> None:
        """Dots, with a line through them where they are one curve."""
        places = sorted(self.place(*point) for point in points if SPEEDS[0] <= point[0] <= SPEEDS[-1])
        if joined and len(places) > 1:
            self._pen.line(places, fill=colour, width=4)
        for x, y in places:
            self._pen.ellipse([x - 7, y - 7, x + 7, y + 7], fill=colour, outline="white")


def draw(found: Sequence[Line], path: Path, title: str) -> None:
    """Writes the PNG: the mean of the frames on the left, the worst frame on the right."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    pen = ImageDraw.Draw(image)
    pen.text((LEFT, 30), title, fill="#111111", font=font(26))
    middle = (LEFT + WIDTH - RIGHT) // 2
    sides = ((LEFT, middle - GAP // 2), (middle + GAP // 2, WIDTH - RIGHT))
    values: tuple[tuple[str, Value], ...] = (
        ("PSNR in dB, mean of the videos", lambda one: one.mean_db),
        ("PSNR in dB, worst frame of all videos", lambda one: one.worst_db),
    )
    for (left, right), (said, value) in zip(sides, values, strict=True):
        panel(pen, (left, right), said, value, [one for one in found if one.family in COLOURS])
    legend(pen)
    image.save(path)


def panel(
    pen: ImageDraw.ImageDraw,
    sides: tuple[int, int],
    title: str,
    value: Value,
    found: Sequence[Line],
) -> None:
    points = [(one.family, one.own_x, decibels) for one in found if (decibels := value(one)) is not None]
    # An uncached run is at the very left and beyond every scale.
    points = [point for point in points if point[1] >= 1.05]
    heights = [decibels for _, _, decibels in points]
    axes = Panel(pen, *sides, 5 * (min(heights) // 5), 5 * (max(heights) // 5 + 1))
    axes.axes(title)
    for family, colour in COLOURS.items():
        mine = [(speed, decibels) for of, speed, decibels in points if of == family]
        axes.series(mine, colour, joined=family in JOINED)


def legend(pen: ImageDraw.ImageDraw) -> None:
    """One line below both panels."""
    x, y = LEFT, HEIGHT - 40
    for family, colour in COLOURS.items():
        pen.ellipse([x, y - 7, x + 14, y + 7], fill=colour)
        pen.text((x + 22, y), NAMES[family], fill="#222222", font=font(20), anchor="lm")
        x += 50 + int(pen.textlength(NAMES[family], font=font(20)))


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
