"""From a request's cache field to the policy that its video runs with."""

from dataclasses import dataclass

from videoserve_cache.steps.curve import Curves, Point
from videoserve_cache.steps.named import named
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.request import CacheRequest, UnusableCacheError
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.targets import Promise, UnreachableTargetError, for_quality, for_runs, for_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The policy, and what a calibration foretells of it where it was chosen by one."""

    policy: Policy
    seconds: float | None = None
    point: Point | None = None


def resolve(request: CacheRequest, schedule: Schedule, curves: Curves | None) -> Resolved:
    """Pure. The curves are of this very model, schedule and size, or None where nothing was calibrated.

    UnusableCacheError, with what is allowed or missing.
    """
    if not request.calibrated:
        return planned(named(request), schedule)
    if curves is None:
        raise UnusableCacheError(
            "cache",
            f"{asked(request)} needs a calibration of this model with these adapters, steps and size; there is none.",
        )
    if request.policy == "magnitude":
        return planned(named(request, curves.calibration.ratios), schedule)
    try:
        chosen = promised(request, curves)
    except UnreachableTargetError as error:
        raise UnusableCacheError("cache", str(error)) from None
    return Resolved(policy=chosen.policy, seconds=chosen.seconds, point=chosen.point)


def planned(policy: Policy, schedule: Schedule) -> Resolved:
    """The policy, once it is known to fit the number of steps."""
    try:
        policy.plan(schedule)
    except ValueError as error:
        raise UnusableCacheError("cache", str(error)) from None
    return Resolved(policy=policy)


def promised(request: CacheRequest, curves: Curves) -> Promise:
    """The policies that the curve of a calibration gives."""
    if request.policy == "schedule":
        return for_runs(request.parameters["runs"], curves, request.guards)
    if request.time_budget_s is not None:
        return for_time(request.time_budget_s, curves, request.guards)
    assert request.quality is not None, "a request without policy and time has a quality"
    return for_quality(request.quality, curves, request.guards)


def asked(request: CacheRequest) -> str:
    """What the request says, as a sentence begins."""
    if request.policy is not None:
        return f"The policy {request.policy}"
    return "cache.time_budget_s" if request.time_budget_s is not None else f"cache.quality {request.quality}"
