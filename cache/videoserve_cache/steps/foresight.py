"""How far from the uncached video a plan will end, foretold from a calibration without computing anything."""

from collections.abc import Sequence
from itertools import pairwise
from math import log10

import numpy as np
from numpy.typing import NDArray

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.schedule import Schedule

# A plan that loses nothing has no end of decibels; JSON has.
LOSSLESS_DB = 200.0


def slip(schedule: Schedule, forecast: Forecast, anchors: Sequence[int], until: int) -> list[float]:
    """What the steps skipped between the last anchor and `until` add to the latents wrongly, as weights [n].

    A replay takes the gap again once `until` is computed too. Each weight is of what its step makes on the uncached
    way: a forecast is a sum of anchors, so the error of any plan is a sum of what was measured, and its norm follows
    from inner products.
    """
    weights = [0.0] * schedule.n_steps
    # Another expert's step tells nothing of this one's.
    replayed = forecast.replay and schedule.experts[until] == schedule.experts[anchors[-1]]
    through = [*anchors, until] if replayed else anchors
    for step in range(anchors[-1] + 1, until):
        length = schedule.sigmas[step + 1] - schedule.sigmas[step]
        weights[step] -= length
        for anchor, share in zip(through, forecast.weights(through, schedule.sigmas, step), strict=True):
            weights[anchor] += length * share
    return weights


def slips(schedule: Schedule, forecast: Forecast, letters: str) -> list[float]:
    """The sum of the slips of a plan whose last step is computed, weights [n]."""
    total = [0.0] * schedule.n_steps
    runs = [step for step, letter in enumerate(letters) if letter == Decision.RUN.value]
    for index, (run, until) in enumerate(pairwise(runs)):
        if until > run + 1:
            begin = schedule.first_of_expert(run)
            anchors = [step for step in runs[: index + 1] if step >= begin][-forecast.depth :]
            total = [a + b for a, b in zip(total, slip(schedule, forecast, anchors, until), strict=True)]
    return total


def squares(weights: Sequence[Sequence[float]], grams: NDArray[np.float64]) -> NDArray[np.float64]:
    """The squared norms that weights [m, n] give in each of the samples' grams [samples, n, n]: [m, samples]."""
    rows = np.array(weights, dtype=np.float64)
    found: NDArray[np.float64] = ((rows @ grams) * rows).sum(axis=-1).T  # [m, samples]
    # What is lost entirely to rounding may come out below nothing.
    return found.clip(min=0.0)


def errors(calibration: Calibration, forecast: Forecast, plans: Sequence[str]) -> NDArray[np.float64]:
    """|latents - uncached ones| / |uncached ones| at the end, of each plan and sample: float64 [plans, samples]."""
    rows = [slips(calibration.schedule, forecast, letters) for letters in plans]
    return calibration.growth * np.sqrt(squares(rows, calibration.grams(forecast.of)))


def decibels(error: float) -> float:
    """A relative error as a distance between signal and error."""
    return LOSSLESS_DB if error == 0 else min(LOSSLESS_DB, -20 * log10(error))
