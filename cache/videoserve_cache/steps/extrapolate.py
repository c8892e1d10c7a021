"""What was kept at computed steps, continued to a skipped one: by a polynomial through it, or by fitted shares."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve_cache.steps.context import StepCtx
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Forecast


@dataclass(frozen=True, slots=True, eq=False)
class Anchor:
    """What was kept at a computed step."""

    step: int
    sigma: float
    value: Tensor


def foretold(forecast: Forecast | Fitted, anchors: Sequence[Anchor], ctx: StepCtx) -> Tensor:
    """The forecast for a step, in float32 or better; anchors oldest first, at least one."""
    if isinstance(forecast, Fitted):
        return combined([anchor.value for anchor in anchors], forecast.row(ctx.step, anchors[-1].step))
    # A solver of second order comes to the same sigma twice: the newer value counts.
    newest = {forecast.place(anchor.step, anchor.sigma): anchor.value for anchor in anchors}
    places = list(newest)[-forecast.depth :]
    return extrapolate([newest[place] for place in places], places, forecast.place(ctx.step, ctx.sigma))


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


def combined(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of the newest values in these shares, oldest first; in float32 or better.

    With fewer values than shares, as after a change of weights in between, it is the newest value.
    """
    if len(values) < len(shares):
        values, shares = values[-1:], (1.0,)
    used = values[-len(shares) :]
    result = torch.zeros_like(used[0], dtype=torch.promote_types(used[0].dtype, torch.float32))
    for value, share in zip(used, shares, strict=True):
        result.add_(value, alpha=share)
    return result
