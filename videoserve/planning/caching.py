"""What a request says about the step cache, from the spellings of forms and command lines to what a plan holds."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from videoserve.errors import InvalidField
from videoserve.types import VideoPlan
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.named import named
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import executed
from videoserve_cache.steps.request import POLICIES, QUALITIES, UnusableCacheError
from videoserve_cache.steps.schedule import Schedule

# What may stand for an object.
SHORT: dict[str, dict[str, Any]] = {"off": {"policy": "off"}, **{name: {"quality": name} for name in QUALITIES}}
EXACT: dict[str, Any] = {"quality": "exact"}
# The fields whose values a form can only send as text.
KINDS: dict[str, type] = {
    "time_budget_s": float,
    "verify": bool,
    "near": float,
    "reuse": bool,
    **{name: kind for takes in POLICIES.values() for name, kind in takes.items()},
}
NUMBER = {int: "integer", float: "number", str: "string", bool: "boolean"}


def spelled(told: Any) -> Any:
    """The object that a word or a form means; what cannot be read stays as it is. ValueError for another word."""
    if isinstance(told, str):
        if told not in SHORT:
            raise ValueError(f"it is one of {', '.join(SHORT)}, or an object as /openapi.json describes it")
        return SHORT[told]
    if not isinstance(told, Mapping):
        return told
    return {name: read(value, KINDS[name]) if name in KINDS else value for name, value in told.items()}


def read(value: Any, kind: type) -> Any:
    """A text as the number or the yes or no that it spells."""
    if not isinstance(value, str) or kind is str:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return value


def settled(told: Mapping[str, Any] | None) -> dict[str, Any]:
    """The field as a plan holds it, in one spelling. InvalidField names the part of it that cannot be used."""
    try:
        return parse(told or {}).to_dict()
    except UnusableCacheError as error:
        raise InvalidField(error.param, str(error)) from None


def computed(plan: VideoPlan) -> int:
    """Steps that a plan is known to compute at most, its reference's among them."""
    reference = plan.steps if plan.cache.get("verify") and plan.cache.get("quality") != "exact" else 0
    if plan.cache.get("policy") != "mask":
        return plan.steps + reference
    letters = executed(named(parse(plan.cache)), plain_schedule(plan.steps))
    assert letters is not None, "a mask is known before the first step"
    return letters.count(Decision.RUN) + reference


def plain_schedule(steps: int) -> Schedule:
    """So many steps of one expert, for what does not depend on their noise levels."""
    return Schedule.plain(tuple(1 - step / steps for step in range(steps + 1)))


def schema() -> dict[str, Any]:
    """The field as /openapi.json shows it."""
    also: dict[str, Any] = {
        "verify": {"type": "boolean", "description": "Also computes the uncached video and compares."},
        "near": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 1,
            "description": "How alike the prompt of an earlier video of yours with the same picture and size must be "
            "(cosine of the embeddings) for this one to begin with it. The result is approximate.",
        },
        "reuse": {"type": "boolean", "description": "False: nothing of earlier requests is used, nothing is left."},
    }
    ways: list[dict[str, Any]] = [
        {"quality": {"enum": list(QUALITIES)}},
        {"time_budget_s": {"type": "number", "exclusiveMinimum": 0, "description": "Seconds of work, all stages."}},
        *({"policy": {"const": name}} | of_policy(takes) for name, takes in POLICIES.items()),
    ]
    objects = [
        {"type": "object", "properties": way | also, "required": needed(way), "additionalProperties": False}
        for way in ways
    ]
    return {"anyOf": [{"enum": list(SHORT)}, *objects]}


def of_policy(takes: Mapping[str, type]) -> dict[str, Any]:
    return {name: {"type": NUMBER[kind]} for name, kind in takes.items()}


def needed(way: Mapping[str, Any]) -> list[str]:
    """The way itself, and a policy's first parameter."""
    return list(way)[:2] if "policy" in way else list(way)
