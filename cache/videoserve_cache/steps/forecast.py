"""What a skipped step is taken to be: a polynomial through the last computed ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from videoserve_cache.steps.context import StepCtx

Axis = Literal["sigma", "step"]
Stream = Literal["residual", "output"]
ORDERS = (0, 1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """What was kept at a computed step."""

    step: int
    sigma: float
    value: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Order of the polynomial, the axis it runs along, and what it forecasts: output - input, or the output itself.

    Exact for anything that is a polynomial of that order along the axis, whatever the distances of the anchors. With
    fewer anchors than order + 1 the order is lower.
    """

    order: int = 1
    axis: Axis = "sigma"
    of: Stream = "residual"

    def __post_init__(self) -> None:
        for name, allowed in (("order", ORDERS), ("axis", ("sigma", "step")), ("of", ("residual", "output"))):
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}.")

    @property
    def depth(self) -> int:
        """How many computed steps are kept."""
        return self.order + 1

    def at(self, anchors: Sequence[Anchor], ctx: StepCtx) -> Tensor:
        """The forecast for a step, in float32 or better; anchors oldest first, at least one."""
        # A solver of second order comes to the same sigma twice: the newer value counts.
        newest = {self.place(anchor.step, anchor.sigma): anchor.value for anchor in anchors}
        places = list(newest)[-self.depth :]
        return extrapolate([newest[place] for place in places], places, self.place(ctx.step, ctx.sigma))

    def weights(self, steps: Sequence[int], sigmas: Sequence[float], to: int) -> list[float]:
        """What each anchor step, oldest first, counts in the forecast for step `to` of the schedule's `sigmas`."""
        places = [self.place(step, sigmas[step]) for step in steps][-self.depth :]
        units = list(torch.eye(len(places), dtype=torch.float64))
        found: list[float] = extrapolate(units, places, self.place(to, sigmas[to])).tolist()
        return [0.0] * (len(steps) - len(places)) + found

    def place(self, step: int, sigma: float) -> float:
        return sigma if self.axis == "sigma" else float(step)


def extrapolate(values: Sequence[Tensor], places: Sequence[float], to: float) -> Tensor:
    """Newton's polynomial through `values` at distinct `places`, at `to`; in float32 or better.

    By divided differences from the newest value on, so that equal values give that value to the last bit.
    """
    table = [value.to(torch.promote_types(value.dtype, torch.float32)) for value in reversed(values)]
    xs = list(reversed(places))
    result, reach = table[0].clone(), 1.0
    for level in range(1, len(xs)):
        table = [(table[i + 1] - table[i]) / (xs[i + level] - xs[i]) for i in range(len(table) - 1)]
        reach *= to - xs[level - 1]
        result.add_(table[0], alpha=reach)
    return result
