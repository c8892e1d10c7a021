"""What a skipped step is taken to be: which polynomial through the last computed ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Axis = Literal["sigma", "step"]
Stream = Literal["residual", "output"]
ORDERS = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Order of the polynomial, the axis it runs along, and what it forecasts: output - input, or the output itself.

    Exact for anything that is a polynomial of that order along the axis, whatever the distances of the anchors. With
    fewer anchors than order + 1 the order is lower. With `replay` the skipped steps are taken once more when the next
    one has been computed: by then they lie between anchors instead of behind them.
    """

    order: int = 1
    axis: Axis = "sigma"
    of: Stream = "residual"
    replay: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("order", ORDERS), ("axis", ("sigma", "step")), ("of", ("residual", "output"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}.")

    @property
    def depth(self) -> int:
        """How many computed steps are kept, and a forecast goes through."""
        return self.order + 1

    def weights(self, steps: Sequence[int], sigmas: Sequence[float], to: int) -> list[float]:
        """What each anchor step, oldest first, counts in the forecast for step `to` of the schedule's `sigmas`."""
        places = [self.place(step, sigmas[step]) for step in steps]
        target = self.place(to, sigmas[to])
        used = range(max(0, len(steps) - self.depth), len(steps))
        return [
            prod((target - places[j]) / (places[i] - places[j]) for j in used if j != i) if i in used else 0.0
            for i in range(len(steps))
        ]

    def place(self, step: int, sigma: float) -> float:
        return sigma if self.axis == "sigma" else float(step)
