"""The best plan for each number of computed steps, over all forecasts: what a target is looked up in."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import get_args

import numpy as np

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.forecast import ORDERS, Axis, Forecast, Stream
from videoserve_cache.steps.foresight import decibels, errors
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Planned
from videoserve_cache.steps.programme import Programme, forced

# With one anchor the axis makes no difference.
FORECASTS = (
    *(Forecast(order=0, of=of) for of in get_args(Stream)),
    *(
        Forecast(order=order, axis=axis, of=of)
        for order, axis, of in product(ORDERS[1:], get_args(Axis), get_args(Stream))
    ),
)
# A curve is of these or of those, never of both: what a replay does to the computed step after it is not foretold, so
# that beside the others it looks better than it is.
REPLAYED = tuple(replace(forecast, replay=True) for forecast in FORECASTS if forecast.order > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan, what it takes, and how near to the uncached video it is foretold to end.

    `mean_db` and `worst_db` are of |uncached latents| against the difference, over the calibration's samples.
    """

    letters: str
    forecast: Forecast
    mean_db: float
    worst_db: float
    seconds: float

    @property
    def runs(self) -> int:
        return self.letters.count(Decision.RUN.value)

    def policy(self, calibration: Calibration, guards: Guards) -> Planned:
        return Planned(steps=self.letters, forecast=self.forecast, guards=guards, calibration=calibration.digest)


class Curves:
    """The curves of one calibration, each made once: one takes seconds."""

    def __init__(self, calibration: Calibration, forecasts: Sequence[Forecast] = FORECASTS) -> None:
        self.calibration = calibration
        self._forecasts = forecasts
        self._made: dict[Guards, list[Point]] = {}

    def of(self, guards: Guards) -> list[Point]:
        if guards not in self._made:
            self._made[guards] = curve(self.calibration, guards, self._forecasts)
        return self._made[guards]


def curve(calibration: Calibration, guards: Guards, forecasts: Sequence[Forecast] = FORECASTS) -> list[Point]:
    """The points from the fewest computed steps to all of them, none of which is worse than one with fewer."""
    best: dict[int, tuple[float, str, Forecast]] = {}
    for forecast in forecasts:
        plans = Programme(calibration, forecast, guards).plans()
        means = np.square(errors(calibration, forecast, list(plans.values()))).mean(axis=1).tolist()
        for (runs, letters), error in zip(plans.items(), means, strict=True):
            if runs not in best or error < best[runs][0]:
                best[runs] = error, letters, forecast
    points: list[Point] = []
    for runs in sorted(best):
        _, letters, forecast = best[runs]
        found = point(calibration, polished(calibration, letters, forecast, guards), forecast)
        if not points or found.worst_db > points[-1].worst_db:
            points.append(found)
    return points


def point(calibration: Calibration, letters: str, forecast: Forecast) -> Point:
    """What a plan is foretold to give."""
    (found,) = errors(calibration, forecast, [letters])
    return Point(
        letters=letters,
        forecast=forecast,
        mean_db=decibels(float(np.sqrt(np.square(found).mean()))),
        worst_db=decibels(float(found.max())),
        seconds=calibration.seconds(letters.count(Decision.RUN.value)),
    )


def polished(calibration: Calibration, letters: str, forecast: Forecast, guards: Guards) -> str:
    """The plan after moving single computed steps as long as that lowers the whole error.

    The programme adds up the gaps' errors as if they had nothing to do with each other; they may cancel or pile up.
    """
    kept, too_long = forced(calibration.schedule, guards), Decision.SKIP.value * (guards.max_skips + 1)
    while True:
        near = [letters, *(plan for plan in moved(letters, kept) if too_long not in plan)]
        means = np.square(errors(calibration, forecast, near)).mean(axis=1)
        best = int(means.argmin())
        if best == 0:
            return letters
        letters = near[best]


def moved(letters: str, kept: set[int]) -> list[str]:
    """Every plan in which one computed step is another one."""
    runs = [step for step, letter in enumerate(letters) if letter == Decision.RUN.value and step not in kept]
    skips = [step for step, letter in enumerate(letters) if letter == Decision.SKIP.value]
    swap = {Decision.RUN.value: Decision.SKIP.value, Decision.SKIP.value: Decision.RUN.value}
    return [
        "".join(swap[letter] if step in pair else letter for step, letter in enumerate(letters))
        for pair in product(runs, skips)
    ]
