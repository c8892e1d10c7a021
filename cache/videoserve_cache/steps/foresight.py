"""How far from the uncached video a plan will end, foretold from a calibration without computing anything."""

from collections.abc import Sequence
from itertools import pairwise
from math import log10

import numpy as np
from numpy.typing import NDArray

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.fit import Fit
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.schedule import Schedule

AnyForecast = Forecast | Fitted | Fit
# How much a computed velocity changes for each unit that the latents before it have strayed: on the demo model 1 to 2.5
# on most videos and 5 on the worst.
ANSWER = 2.0
# How much of that stays where the gap it came of is taken again. With this, the worst of a calibration's samples is
# foretold 1 to 5 dB worse than other videos of the demo model come out.
STAYS = 0.5
# A plan that loses nothing has no end of decibels; JSON has.
LOSSLESS_DB = 200.0


def slip(schedule: Schedule, forecast: AnyForecast, anchors: Sequence[int], until: int, *, again: bool) -> list[float]:
    """What the steps skipped between the last anchor and `until` add to the latents wrongly, as weights [n].

    With `again` where the forecast replays: when `until` has been computed too. Each weight is of what its step makes
    on the uncached way: a forecast is a sum of anchors, so the error of any plan is a sum of what was measured, and its
    norm follows from inner products.
    """
    weights = [0.0] * schedule.n_steps
    through = [*anchors, until] if again and replays(schedule, forecast, anchors[-1], until) else anchors
    for step in range(anchors[-1] + 1, until):
        length = schedule.sigmas[step + 1] - schedule.sigmas[step]
        weights[step] -= length
        for anchor, share in zip(through, forecast.weights(through, schedule.sigmas, step), strict=True):
            weights[anchor] += length * share
    return weights


def replays(schedule: Schedule, forecast: AnyForecast, run: int, until: int) -> bool:
    """Whether the gap between two computed steps is taken again: another expert's step tells nothing of this one's."""
    return forecast.replay and schedule.experts[until] == schedule.experts[run]


def strays(schedule: Schedule, forecast: AnyForecast, letters: str) -> tuple[list[list[float]], list[float]]:
    """By what the latents are wrong, as weights: [runs - 1, n] where each computed step but the first is computed, and
    [n] at the end of a plan whose last step is.
    """
    total = [0.0] * schedule.n_steps
    runs = [step for step, letter in enumerate(letters) if letter == Decision.RUN.value]
    met: list[list[float]] = []
    for index, (run, until) in enumerate(pairwise(runs)):
        begin = schedule.first_of_expert(run)
        anchors = [step for step in runs[: index + 1] if step >= begin][-forecast.depth :]
        first, last = (slip(schedule, forecast, anchors, until, again=again) for again in (False, True))
        met.append([a + b for a, b in zip(total, first, strict=True)])
        total = [a + b for a, b in zip(total, last, strict=True)]
    return met, total


def squares(weights: Sequence[Sequence[float]], grams: NDArray[np.float64]) -> NDArray[np.float64]:
    """The squared norms that weights [m, n] give in each of the samples' grams [samples, n, n]: [m, samples]."""
    rows = np.array(weights, dtype=np.float64)
    found: NDArray[np.float64] = ((rows @ grams) * rows).sum(axis=-1).T  # [m, samples]
    # What is lost entirely to rounding may come out below nothing.
    return found.clip(min=0.0)


def errors(calibration: Calibration, forecast: AnyForecast, plans: Sequence[str]) -> NDArray[np.float64]:
    """|latents - uncached ones| / |uncached ones| at the end, of each plan and sample: float64 [plans, samples].

    As if what is computed did not depend on the latents.
    """
    rows = [strays(calibration.schedule, forecast, letters)[1] for letters in plans]
    return calibration.growth * np.sqrt(squares(rows, calibration.grams(forecast.of)))


def outcome(calibration: Calibration, forecast: AnyForecast, letters: str) -> NDArray[np.float64]:
    """The same of one plan, with what computed steps get wrong because the latents before them are: float64 [samples].

    What a computed velocity has wrong goes on as far as the next computed one, and back into what is taken again.
    """
    met, end = strays(calibration.schedule, forecast, letters)
    strayed = np.sqrt(squares([*met, end], calibration.grams(forecast.of)))
    reach = np.array(reaches(calibration.schedule, forecast, letters))
    answer = ANSWER * STAYS if forecast.replay else ANSWER
    answered: NDArray[np.float64] = calibration.growth * (strayed[-1] + answer * reach @ strayed[:-1])
    return answered


def reaches(schedule: Schedule, forecast: AnyForecast, letters: str) -> list[float]:
    """Over how much sigma each computed velocity but the first counts."""
    runs = [step for step, letter in enumerate(letters) if letter == Decision.RUN.value]
    found: list[float] = []
    for before, run, until in zip(runs, runs[1:], [*runs[2:], schedule.n_steps], strict=False):
        # Of a gap that is taken again about half comes from either side.
        back = (schedule.sigmas[before + 1] - schedule.sigmas[run]) / 2
        found.append(schedule.sigmas[run] - schedule.sigmas[until] + back * replays(schedule, forecast, before, run))
    return found


def decibels(error: float) -> float:
    """A relative error as a distance between signal and error."""
    return LOSSLESS_DB if error == 0 else min(LOSSLESS_DB, -20 * log10(error))
