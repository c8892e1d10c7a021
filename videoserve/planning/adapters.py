"""Which adapters a video is made with: what a request names, as digests and weights in one spelling."""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from videoserve.errors import InvalidField
from videoserve.planning.adjustments import Adjustments
from videoserve.types import AdapterUse, ExpertTarget, LoraAsk

# Beyond it a change is no longer the one that was trained.
SCALE_MAX = 4.0
# A distilled adapter of so few steps leaves none to skip.
FEW_STEPS = 8

Expert = str
EXPERTS: dict[ExpertTarget, tuple[Expert, ...]] = {"all": ("high", "low"), "high": ("high",), "low": ("low",)}


class Adaptable(Protocol):
    """A model of videos or of chats."""

    @property
    def name(self) -> str: ...
    @property
    def experts(self) -> int: ...


def adapter_uses(asks: Sequence[LoraAsk], card: Adaptable, adjustments: Adjustments) -> tuple[AdapterUse, ...]:
    """What is bound, by digest and target: weights of one adapter added up, weight 0 left out.

    InvalidField for a scale out of range, a target that the model does not have, and one where the adapter changes
    nothing.
    """
    weights: dict[tuple[str, Expert], float] = {}
    named: dict[str, list[str]] = {}
    for ask in asks:
        assert ask.digest is not None, f"the adapter {ask.name} was not looked up"
        check_scale(ask.name, ask.scale)
        for expert in changed(ask, card):
            weights[ask.digest, expert] = weights.get((ask.digest, expert), 0.0) + ask.scale
        named.setdefault(ask.digest, []).append(ask.name)
        if ask.scale == 0:
            adjustments.note(f"The adapter {ask.name} has scale 0: it changes nothing and is left out.")
    for digest, names in named.items():
        if len(names) > 1:
            total = sum(ask.scale for ask in asks if ask.digest == digest)
            check_scale(" and ".join(names), max((w for (d, _), w in weights.items() if d == digest), key=abs))
            adjustments.note(f"{' and '.join(names)} are one adapter: their scales are added up to {total:g}.")
    return merged(weights)


def merged(weights: Mapping[tuple[str, Expert], float]) -> tuple[AdapterUse, ...]:
    """One use where both experts have the same weight, else one for each that has any."""
    uses = []
    for digest in sorted({digest for digest, _ in weights}):
        high, low = (weights.get((digest, expert), 0.0) for expert in EXPERTS["all"])
        targets: dict[ExpertTarget, float] = {"all": high} if high == low else {"high": high, "low": low}
        uses += [
            AdapterUse(digest=digest, weight=weight, target=target) for target, weight in targets.items() if weight
        ]
    return tuple(uses)


def changed(ask: LoraAsk, card: Adaptable) -> tuple[Expert, ...]:
    """The experts that an adapter changes where it is asked for; those of a model with one count as both."""
    if card.experts == 1 and ask.target != "all":
        raise InvalidField("lora", f"lora: target {ask.target!r} is for models with two experts; {card.name} has one.")
    found = [expert for expert in EXPERTS[ask.target] if "any" in ask.parts or expert in ask.parts]
    if not found:
        parts = " and ".join(ask.parts)
        raise InvalidField(
            "lora",
            f"lora: the adapter {ask.name} is for the {parts} expert, so that target {ask.target!r} changes nothing.",
        )
    return tuple(found)


def check_scale(name: str, scale: float) -> None:
    """InvalidField for the scale of an adapter, or the sum of those of one that is named twice."""
    if not math.isfinite(scale) or abs(scale) > SCALE_MAX:
        raise InvalidField(
            "lora",
            f"lora: the scale of {name} is {scale:g}; it is a number from {-SCALE_MAX:g} to {SCALE_MAX:g}.",
        )


def few_steps(asks: Sequence[LoraAsk]) -> LoraAsk | None:
    """The first adapter that is made for so few steps that a step cache would only do harm."""
    return next((ask for ask in asks if ask.scale and ask.steps is not None and ask.steps <= FEW_STEPS), None)
