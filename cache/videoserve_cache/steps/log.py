"""What a step cache has done so far, for the receipt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from videoserve_cache.steps.context import Branch, Decision


@dataclass(frozen=True, slots=True)
class Decided:
    """A step of a branch: what was done and why (a word of guards.py), and what the probe said."""

    step: int
    branch: Branch
    decision: Decision
    why: str
    scalar: float | None

    def to_list(self) -> list[Any]:
        """As JSON can hold it, bit for bit."""
        scalar = None if self.scalar is None else self.scalar.hex()
        return [self.step, self.branch, self.decision.value, self.why, scalar]

    @classmethod
    def from_list(cls, told: Sequence[Any]) -> "Decided":
        step, branch, decision, why, scalar = told
        return cls(step, branch, Decision(decision), why, None if scalar is None else float.fromhex(scalar))


def letters(log: Sequence[Decided], branch: Branch) -> str:
    """R and . of the branch's steps so far; ' ' where it was not asked."""
    written = [" "] * (1 + max((decided.step for decided in log), default=-1))
    for decided in log:
        if decided.branch == branch:
            written[decided.step] = decided.decision.value
    return "".join(written)
