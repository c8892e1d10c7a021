"""The request field `cache`, read and checked before anything is known of the model."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from videoserve_cache.steps.named import named
from videoserve_cache.steps.request import POLICIES, QUALITIES, WAYS, CacheRequest, Quality, UnusableCacheError

LARGEST = sys.float_info.max
WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def parse(told: Mapping[str, Any]) -> CacheRequest:
    """From the JSON object of a request: {policy, its parameters}, {quality} or {time_budget_s}, each with {verify},
    and with what it says about earlier requests, {near} and {reuse}.

    An empty one is quality exact. UnusableCacheError.
    """
    near, reuse = told.get("near"), typed("reuse", told.get("reuse", True), bool)
    if near is not None:
        near = typed("near", near, float)
        if not 0 < near <= 1:
            raise UnusableCacheError("cache.near", f"cache.near is {near:g}; it is above 0 and at most 1.")
        if not reuse:
            raise UnusableCacheError("cache.near", "cache.near asks for earlier videos, and cache.reuse is false.")
    computed = {name: value for name, value in told.items() if name not in ("near", "reuse")}
    return replace(computation(computed), near=near, reuse=reuse)


def computation(told: Mapping[str, Any]) -> CacheRequest:
    """What is said of the computation itself."""
    ways = [way for way in WAYS if told.get(way) is not None]
    if len(ways) > 1:
        raise UnusableCacheError("cache", f"cache has {' and '.join(ways)}; it takes one of {', '.join(WAYS)}.")
    verify = bool(typed("verify", told.get("verify", False), bool))
    rest = {name: value for name, value in told.items() if name not in (*WAYS, "verify")}
    if ways == ["policy"]:
        return of_policy(told["policy"], rest, verify)
    if rest:
        raise UnusableCacheError("cache", f"cache.{min(rest)} has no use without cache.policy.")
    if ways == ["time_budget_s"]:
        budget = typed("time_budget_s", told["time_budget_s"], float)
        if budget <= 0:
            raise UnusableCacheError(
                "cache.time_budget_s", f"cache.time_budget_s is {budget:g}; it is above 0 seconds."
            )
        return CacheRequest(time_budget_s=budget, verify=verify)
    quality = "exact" if told.get("quality") is None else told["quality"]
    if quality not in QUALITIES:
        raise UnusableCacheError("cache.quality", f"cache.quality is {quality!r}; allowed: {', '.join(QUALITIES)}.")
    return CacheRequest(quality=cast(Quality, quality), verify=verify)


def of_policy(policy: Any, parameters: dict[str, Any], verify: bool) -> CacheRequest:
    """A request for a policy by name."""
    if not isinstance(policy, str) or policy not in POLICIES:
        raise UnusableCacheError("cache.policy", f"cache.policy is {policy!r}; allowed: {', '.join(POLICIES)}.")
    takes = POLICIES[policy]
    for name in parameters:
        if name not in takes:
            allowed = f"it takes {', '.join(takes)}" if takes else "it takes nothing"
            raise UnusableCacheError(f"cache.{name}", f"cache.{name} is nothing the policy {policy} knows; {allowed}.")
    if takes and (needed := next(iter(takes))) not in parameters:
        raise UnusableCacheError(
            f"cache.{needed}", f"The policy {policy} needs cache.{needed}, {WORDS[takes[needed]]}."
        )
    checked = {name: typed(name, value, takes[name]) for name, value in parameters.items()}
    if checked.get("runs", 1) < 1:
        raise UnusableCacheError("cache.runs", f"cache.runs is {checked['runs']}; it is a number of steps: 1 or more.")
    found = CacheRequest(policy=policy, parameters=checked, verify=verify)
    named(found)
    return found


def typed(name: str, value: Any, kind: type) -> Any:
    """The value, when it is of the kind; whole numbers are numbers, true and false are not."""
    right = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    # A whole number may be larger than any other number.
    if not right or (kind is float and not abs(value) <= LARGEST):
        raise UnusableCacheError(f"cache.{name}", f"cache.{name} is {value!r}; it is {WORDS[kind]}.")
    return float(value) if kind is float else value
