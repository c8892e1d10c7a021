"""From what a client wants to the policy that gives it: pure, from a calibration."""

from dataclasses import dataclass

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.curve import Curves, Point
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.mask import Planned
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.request import Quality

# Decibels between the uncached latents and the difference, on the worst sample of the calibration.
LEVELS: dict[Quality, float] = {"high": 36.0, "balanced": 30.0, "fast": 24.0}


class UnreachableTargetError(ValueError):
    """No policy gives what is asked; the message names the nearest that can be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """A policy and what it is foretold to take and to lose; `point` None: every step is computed, nothing is lost."""

    policy: Off | Planned
    seconds: float
    point: Point | None


def for_quality(quality: Quality, curves: Curves, guards: Guards) -> Promise:
    """The fewest computed steps that keep the worst sample at the level; all of them where none do."""
    if quality == "exact":
        return exact(curves.calibration)
    good = [point for point in curves.of(guards) if point.worst_db >= LEVELS[quality]]
    return promise(good[0], curves, guards) if good else exact(curves.calibration)


def for_time(seconds: float, curves: Curves, guards: Guards) -> Promise:
    """The most faithful video within that time. UnreachableTargetError when even the fewest steps take longer."""
    if exact(curves.calibration).seconds <= seconds:
        return exact(curves.calibration)
    points = curves.of(guards)
    within = [point for point in points if point.seconds <= seconds]
    if not within:
        raise UnreachableTargetError(
            f"cache.time_budget_s is {seconds:g}, but this video takes {points[0].seconds:.1f} s at least, "
            f"with {points[0].runs} of its {curves.calibration.schedule.n_steps} steps computed."
        )
    return promise(within[-1], curves, guards)


def for_runs(runs: int, curves: Curves, guards: Guards) -> Promise:
    """The most faithful video with at most so many computed steps. UnreachableTargetError when that are too few."""
    points = curves.of(guards)
    within = [point for point in points if point.runs <= runs]
    if not within:
        raise UnreachableTargetError(f"cache.runs is {runs}, but at least {points[0].runs} steps are always computed.")
    return promise(within[-1], curves, guards)


def exact(calibration: Calibration) -> Promise:
    return Promise(policy=Off(), seconds=calibration.seconds(calibration.schedule.n_steps), point=None)


def promise(point: Point, curves: Curves, guards: Guards) -> Promise:
    if point.runs == curves.calibration.schedule.n_steps:
        return exact(curves.calibration)
    return Promise(policy=point.policy(curves.calibration, guards), seconds=point.seconds, point=point)
