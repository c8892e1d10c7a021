"""The best plan for each number of computed steps: what a target is looked up in."""

from dataclasses import dataclass, replace

import numpy as np

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.fit import Fit
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.foresight import decibels, outcome
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Planned
from videoserve_cache.steps.programme import Programme, forced

# Anchors of the fit that plans are chosen with. What is forecast goes through fewer: see Fit.
DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan, what it takes, and how near to the uncached video it is foretold to end.

    `mean_db` and `worst_db` are of |uncached latents| against the difference, over the calibration's samples.
    """

    letters: str
    forecast: Fitted
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

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._made: dict[Guards, list[Point]] = {}

    def of(self, guards: Guards) -> list[Point]:
        if guards not in self._made:
            self._made[guards] = curve(self.calibration, guards)
        return self._made[guards]


def curve(calibration: Calibration, guards: Guards) -> list[Point]:
    """The points from the fewest computed steps to all of them, none of which is worse than one with fewer."""
    chooser = Fit(calibration=calibration, depth=DEPTH)
    best: dict[int, tuple[Guards, str]] = {}
    # No gap is longer than it must be: what a long one loses grows with how much a video answers to strayed latents,
    # and the videos that answer most are hardly ever among the samples.
    for limit in range(guards.max_skips + 1):
        tighter = replace(guards, max_skips=limit)
        plans = Programme(calibration, chooser, tighter).plans()
        best = {runs: (tighter, letters) for runs, letters in plans.items()} | best
    fit = Fit(calibration=calibration)
    points: list[Point] = []
    for runs in sorted(best):
        tighter, letters = best[runs]
        letters = polished(calibration, letters, chooser, tighter)
        found = point(calibration, letters, fit.fitted(letters))
        if not points or found.worst_db > points[-1].worst_db:
            points.append(found)
    return points


def mean(calibration: Calibration, fit: Fit, letters: str) -> float:
    """The mean squared error that a plan is foretold to end with if nothing is taken again.

    Plans chosen by what is left after that came out worse: with ten of twenty steps of the demo model by 2 dB.
    """
    first = replace(fit.fitted(letters), again=())
    return float(np.square(outcome(calibration, first, letters)).mean())


def point(calibration: Calibration, letters: str, forecast: Fitted) -> Point:
    """What a plan is foretold to give."""
    found = outcome(calibration, forecast, letters)
    return Point(
        letters=letters,
        forecast=forecast,
        mean_db=decibels(float(np.sqrt(np.square(found).mean()))),
        worst_db=decibels(float(found.max())),
        seconds=calibration.seconds(letters.count(Decision.RUN.value)),
    )


def polished(calibration: Calibration, letters: str, fit: Fit, guards: Guards) -> str:
    """The plan after moving single computed steps as long as that lowers the whole error.

    The programme adds up the gaps' errors as if they had nothing to do with each other; they may cancel or pile up.
    """
    kept, too_long = forced(calibration.schedule, guards), Decision.SKIP.value * (guards.max_skips + 1)
    error = mean(calibration, fit, letters)
    while True:
        near = {plan: mean(calibration, fit, plan) for plan in moved(letters, kept) if too_long not in plan}
        best = min(near, key=near.__getitem__, default=letters)
        if near.get(best, error) >= error:
            return letters
        letters, error = best, near[best]


def moved(letters: str, kept: set[int]) -> list[str]:
    """Every plan in which one computed step is the one before it or after it."""
    run, skip = Decision.RUN.value, Decision.SKIP.value
    plans: list[str] = []
    for step in range(1, len(letters)):
        pair = letters[step - 1 : step + 1]
        if pair in (run + skip, skip + run) and not kept & {step - 1, step}:
            plans.append(letters[: step - 1] + pair[::-1] + letters[step + 1 :])
    return plans
