"""Forecasts that are fitted to a calibration: exact where they can be, and nearer than polynomials where not."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.toy_denoiser import begin, even, measured, noise, smooth, uncached
from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import StepCtx
from videoserve_cache.steps.curve import curve, mean, polished
from videoserve_cache.steps.extrapolate import combined
from videoserve_cache.steps.fit import Fit
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Axis, Forecast, Stream
from videoserve_cache.steps.foresight import errors, outcome
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Mask, Planned
from videoserve_cache.steps.policy import described
from videoserve_cache.steps.programme import Programme
from videoserve_cache.steps.rebuilt import rebuilt
from videoserve_cache.steps.schedule import Schedule

Calibrate = Callable[..., Calibration]
GUARDS = Guards(warmup=1, max_skips=4)
POLYNOMIALS = [
    Forecast(order=order, axis=axis, of=of, replay=replay)
    for order, axis, of, replay in product((0, 1, 2), get_args(Axis), get_args(Stream), (False, True))
]


def curved(powers: int) -> Callable[[Tensor, StepCtx], Tensor]:
    """A velocity that is a polynomial of sigma, whatever the latents; another one for each expert."""

    def velocity(latents: Tensor, ctx: StepCtx) -> Tensor:
        parts = (noise(10 * ctx.expert + power) * ctx.sigma**power for power in range(powers))
        return sum(parts, torch.zeros(1))

    return velocity


def lost(letters: str, forecast: Forecast | Fitted, schedule: Schedule, model: Callable[..., Tensor]) -> float:
    """On a video that nothing was measured on."""
    truth = uncached(schedule, model, seed=77)
    policy = Mask(steps=letters, forecast=forecast, guards=GUARDS)
    return float((begin(policy, schedule, model, seed=77).finish() - truth).norm() / truth.norm())


@pytest.mark.parametrize("letters", ["R..R.R...R.R", "R....RR...RR"])
def test_a_velocity_that_never_changes_gives_the_same_video_whatever_is_skipped(letters: str) -> None:
    schedule = even(12)
    fitted = Fit(calibration=measured(schedule, curved(1))).fitted(letters)
    assert lost(letters, fitted, schedule, curved(1)) < 1e-7


def test_is_exact_where_the_anchors_span_what_is_skipped() -> None:
    schedule, letters = even(14, boundary=7), "RRR..RRRRR..RR"
    fitted = Fit(calibration=measured(schedule, curved(3))).fitted(letters)
    assert lost(letters, fitted, schedule, curved(3)) < 1e-5
    assert lost(letters, Forecast(order=1, of="output"), schedule, curved(3)) > 1e-3


def test_what_a_gap_could_not_know_at_first_is_mended_when_the_next_step_is_computed() -> None:
    # Two outputs span everything, but the first gap has one of them only.
    schedule, letters = even(12), "R..R.R.R.RRR"
    fitted = Fit(calibration=measured(schedule, curved(2))).fitted(letters)
    assert lost(letters, fitted, schedule, curved(2)) < 1e-6
    assert lost(letters, replace(fitted, again=()), schedule, curved(2)) > 1e-3


def test_is_nearer_than_every_polynomial_with_the_same_plan(calibrate: Calibrate) -> None:
    schedule, letters = even(20), "R..R..R.R..R.R..R.RR"
    fitted = Fit(calibration=calibrate(schedule, seeds=4)).fitted(letters)
    best = min(lost(letters, forecast, schedule, smooth()) for forecast in POLYNOMIALS)
    assert lost(letters, fitted, schedule, smooth()) < best


def test_its_plans_foretell_the_size_of_the_error(calibrate: Calibrate) -> None:
    schedule = even(20)
    calibration = calibrate(schedule, seeds=4)
    points = {point.runs: point for point in curve(calibration, GUARDS)}
    for runs in (8, 10, 12):
        point = points[runs]
        assert isinstance(point.forecast, Fitted)
        foretold = -20 * np.log10(lost(point.letters, point.forecast, schedule, smooth()))
        assert abs(foretold - point.mean_db) < 10


def test_what_computed_steps_answer_makes_every_error_larger(calibrate: Calibrate) -> None:
    calibration, letters = calibrate(even(12)), "R..R..R.R.RR"
    forecast = Fit(calibration=calibration).fitted(letters)
    plain, answered = errors(calibration, forecast, [letters])[0], outcome(calibration, forecast, letters)
    assert (plain < answered).all()
    assert outcome(calibration, forecast, "R" * 12).max() == 0


def test_polishing_never_makes_a_plan_worse_and_keeps_what_is_forced(drawn: Calibrate) -> None:
    calibration = drawn(even(12, boundary=6), 5)
    fit, guards = Fit(calibration=calibration), Guards(warmup=2, max_skips=3)
    for letters in Programme(calibration, fit, guards).plans().values():
        better = polished(calibration, letters, fit, guards)
        assert mean(calibration, fit, better) <= mean(calibration, fit, letters)
        assert better.count("R") == letters.count("R")
        assert "...." not in better
        assert all(better[step] == "R" for step in (0, 1, 6, 7, 11))


def test_no_anchor_is_of_another_expert(drawn: Calibrate) -> None:
    calibration = drawn(even(12, boundary=6), 5)
    fitted = Fit(calibration=calibration).fitted("RR.R..R.R..R")
    assert [len(row) for row in fitted.shares] == [0, 0, 2, 0, 2, 2, 0, 1, 0, 2, 2, 0]
    assert [len(row) for row in fitted.again] == [0, 0, 3, 0, 0, 0, 0, 2, 0, 3, 3, 0]
    sigmas = calibration.schedule.sigmas
    assert fitted.weights([3, 6], sigmas, 7) == [0.0, fitted.shares[7][0]]
    assert fitted.weights([3, 6, 8], sigmas, 7) == [0.0, *fitted.again[7]]


def test_with_fewer_anchors_than_shares_the_newest_is_taken() -> None:
    values = [torch.tensor([1.0]), torch.tensor([2.0])]
    assert combined(values, (0.25, 0.25, 0.5)).item() == 2.0
    assert combined(values, (0.5,)).item() == 1.0
    assert combined(values, (3.0, -1.0)).item() == 1.0


def test_its_policy_comes_through_json_as_it_was(drawn: Calibrate) -> None:
    letters = "RR.R..R.R..R"
    fitted = Fit(calibration=drawn(even(12), 5)).fitted(letters)
    policy = Planned(steps=letters, forecast=fitted, guards=GUARDS, calibration="ab")
    assert rebuilt(json.loads(json.dumps(described(policy)))) == policy
