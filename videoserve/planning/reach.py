"""What the step cache can reach: requests that no policy could meet are refused before anything is computed."""

from collections.abc import Mapping
from typing import Any

from videoserve.errors import InvalidField
from videoserve.planning.caching import plain_schedule
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.mask import Mask
from videoserve_cache.steps.named import named
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import executed
from videoserve_cache.steps.request import CacheRequest


def check_reach(cache: Mapping[str, Any], steps: int, blocks: int) -> None:
    """InvalidField for a policy that does not fit a video of so many steps and a transformer of so many blocks.

    `cache` is a plan's. What depends on where experts take over, or on a calibration, is left to the engine.
    """
    request = parse(cache)
    if request.policy == "mask":
        _check_mask(request, steps)
    if request.policy == "first_blocks":
        _check_blocks(request, blocks)
    if request.policy == "schedule" and request.parameters["runs"] < (least := fewest(request, steps)):
        runs = request.parameters["runs"]
        raise InvalidField("cache.runs", f"cache.runs is {runs}, but at least {least} steps are always computed.")


def check_budget(cache: Mapping[str, Any], steps: int, cost: Mapping[str, float] | None) -> None:
    """InvalidField for a time budget below what the fewest steps take.

    `cost` holds the seconds that were measured of this very shape, encode, step, decode and write; None where nothing
    was, and the engine decides.
    """
    request = parse(cache)
    if request.time_budget_s is None or cost is None:
        return
    runs = fewest(request, steps)
    least_s = cost["encode"] + runs * cost["step"] + cost["decode"] + cost["write"]
    if request.time_budget_s < least_s:
        raise InvalidField(
            "cache.time_budget_s",
            f"cache.time_budget_s is {request.time_budget_s:g}, but this video takes about {least_s:.3g} s at least, "
            f"with {runs} of its {steps} steps computed.",
        )


def fewest(request: CacheRequest, steps: int) -> int:
    """Steps that the guards have computed in every plan, whatever the model has of experts."""
    policy = Mask(steps=Decision.SKIP * steps, guards=request.guards)
    letters = executed(policy, plain_schedule(steps))
    assert letters is not None, "a mask is known before the first step"
    return letters.count(Decision.RUN)


def _check_mask(request: CacheRequest, steps: int) -> None:
    letters: str = request.parameters["steps"]
    try:
        named(request).plan(plain_schedule(steps))
    except ValueError as error:
        raise InvalidField("cache.steps", str(error)) from None
    warm = request.guards.warmup
    if Decision.SKIP in letters[:warm]:
        step = letters.index(Decision.SKIP) + 1
        always = "the first step is" if warm == 1 else f"the first {warm} steps are"
        less = "" if step == 1 else f"; cache.warmup says how many, and is at least 1: {step - 1} would do"
        raise InvalidField("cache.steps", f"cache.steps skips step {step}, but {always} always computed{less}.")


def _check_blocks(request: CacheRequest, blocks: int) -> None:
    own = {"first": 1, "last": 0} | request.own()
    if own["first"] + own["last"] > blocks:
        param = "first" if own["first"] > blocks else "last"
        raise InvalidField(
            f"cache.{param}",
            f"cache.first {own['first']} and cache.last {own['last']} are more blocks than the {blocks} of this model.",
        )
