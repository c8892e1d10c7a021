"""The dynamic programme against trying every plan, and what it foretells against what comes out."""

from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest

from tests.toy_denoiser import begin, even, polynomial, smooth, uncached
from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.curve import curve
from videoserve_cache.steps.fit import Fit
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.foresight import errors, slip, squares
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.policy import executed
from videoserve_cache.steps.programme import Programme, forced

Calibrate = Callable[..., Calibration]


def every_plan(programme: Programme) -> Iterator[str]:
    """All that the guards allow."""
    schedule = programme.calibration.schedule
    kept = forced(schedule, programme.guards)
    free = [step for step in range(schedule.n_steps) if step not in kept]
    for count in range(len(free) + 1):
        for chosen in combinations(free, count):
            letters = "".join("R" if step in kept or step in chosen else "." for step in range(schedule.n_steps))
            if "." * (programme.guards.max_skips + 1) not in letters:
                yield letters


def added_up(programme: Programme, letters: str) -> float:
    """A plan's cost, gap by gap."""
    schedule, forecast = programme.calibration.schedule, programme.forecast
    runs = [step for step, letter in enumerate(letters) if letter == "R"]
    total = 0.0
    for index, until in enumerate(runs[1:]):
        anchors = [step for step in runs[: index + 1] if step >= schedule.first_of_expert(runs[index])]
        weights = slip(schedule, forecast, anchors[-forecast.depth :], until, again=True)
        total += float(squares([weights], programme.calibration.grams(forecast.of)).mean())
    return total


@pytest.mark.parametrize("order", [0, 1, 2, "fitted"])
def test_finds_the_best_of_all_plans_for_every_number_of_steps(order: int | str, drawn: Calibrate) -> None:
    for seed, boundary in ((0, None), (1, 4)):
        calibration = drawn(even(10, boundary=boundary), seed)
        forecast = Forecast(order=order) if isinstance(order, int) else Fit(calibration=calibration, depth=2)
        programme = Programme(calibration, forecast, Guards(warmup=1, max_skips=3))
        best: dict[int, float] = {}
        for letters in every_plan(programme):
            runs = letters.count("R")
            best[runs] = min(best.get(runs, np.inf), added_up(programme, letters))
        found = {runs: added_up(programme, letters) for runs, letters in programme.plans().items()}
        assert found == pytest.approx(best)


def test_its_plans_are_what_is_executed(drawn: Calibrate) -> None:
    schedule, guards = even(16, boundary=7), Guards(warmup=2, max_skips=2)
    plans = Programme(drawn(schedule, 3), Forecast(order=1), guards).plans()
    assert list(plans) == list(range(min(plans), 17))
    for runs, letters in plans.items():
        assert letters.count("R") == runs
        assert executed(Mask(steps=letters, guards=guards), schedule) == letters


def test_foretells_the_first_step_s_error_exactly(calibrate: Calibrate) -> None:
    # Residuals do not depend on the latents here, so that one error does not change what comes after it.
    schedule = even(12)
    for order in (0, 1):
        forecast = Forecast(order=order)
        calibration = calibrate(schedule, polynomial(2), seeds=1)
        letters = "RR.RRRRRRRRR"
        (foretold,) = errors(calibration, forecast, [letters])[0].tolist()
        truth = uncached(schedule, polynomial(2), seed=0)
        got = begin(Mask(steps=letters, forecast=forecast), schedule, polynomial(2), seed=0).finish()
        # velocity = latents + residual carries an error on to the end: e^(change of sigma), at most e.
        error = float((got - truth).norm() / truth.norm())
        assert error < 1.05 * foretold < 4 * error


def test_a_replay_is_foretold_to_come_nearer(calibrate: Calibrate) -> None:
    schedule, letters = even(20), "RR..R..R..R..R..R..R"
    calibration = calibrate(schedule)
    for order in (1, 2):
        plain, replayed = (
            errors(calibration, Forecast(order=order, replay=replay), [letters]).max() for replay in (False, True)
        )
        assert replayed < plain / 2


def test_forecasts_of_the_right_order_are_foretold_to_lose_nothing(calibrate: Calibrate) -> None:
    calibration = calibrate(even(12), polynomial(1))
    letters = "RR...R...R.R"
    assert errors(calibration, Forecast(order=1), [letters]).max() < 1e-6
    assert errors(calibration, Forecast(order=0), [letters]).min() > 1e-2


def test_the_curve_rises_and_its_plans_beat_evenly_spaced_ones(calibrate: Calibrate) -> None:
    schedule = even(20)
    calibration = calibrate(schedule, seeds=3)
    points = curve(calibration, Guards(warmup=2, max_skips=4))
    assert [point.runs for point in points] == sorted({point.runs for point in points})
    assert [point.worst_db for point in points] == sorted(point.worst_db for point in points)
    assert all(point.seconds == pytest.approx(2 + point.runs + (20 - point.runs) * 0.01) for point in points)
    ten = next(point for point in points if point.runs >= 10)
    truth = uncached(schedule, smooth(), seed=77)

    def lost(policy: Mask) -> float:
        return float((begin(policy, schedule, smooth(), seed=77).finish() - truth).norm() / truth.norm())

    planned = lost(ten.policy(calibration, Guards()))
    assert ten.runs <= 11
    assert planned < lost(Mask(steps="RR" + ".R" * 9, forecast=Forecast(order=1))) / 2
    # On a video that it was not measured on, the foretold error is of the right size.
    assert -10 < -20 * np.log10(planned) - ten.mean_db < 10
