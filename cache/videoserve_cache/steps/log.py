"""What a step cache has done so far, for the receipt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from videoserve_cache.steps.context import LEAD, Branch, Decision
from videoserve_cache.steps.guards import Guards


@dataclass(frozen=True, slots=True)
class Decided:
    """A step of a branch: what was done and why (a word of guards.py), what the policy wanted, what the probe said."""

    step: int
    branch: Branch
    decision: Decision
    why: str
    wanted: Decision
    scalar: float | None

    @property
    def overruled(self) -> bool:
        """Whether guards had a step computed that the policy would have skipped."""
        return self.wanted is Decision.SKIP and self.decision is Decision.RUN

    def to_list(self) -> list[Any]:
        """As JSON can hold it, bit for bit."""
        scalar = None if self.scalar is None else self.scalar.hex()
        return [self.step, self.branch, self.decision.value, self.why, self.wanted.value, scalar]

    @classmethod
    def from_list(cls, told: Sequence[Any]) -> "Decided":
        step, branch, decision, why, wanted, scalar = told
        number = None if scalar is None else float.fromhex(scalar)
        return cls(step, branch, Decision(decision), why, Decision(wanted), number)


def letters(log: Sequence[Decided], branch: Branch) -> str:
    """R and . of the branch's steps so far; ' ' where it was not asked."""
    written = [" "] * (1 + max((decided.step for decided in log), default=-1))
    for decided in log:
        if decided.branch == branch:
            written[decided.step] = decided.decision.value
    return "".join(written)


def overruled(log: Sequence[Decided], guards: Guards) -> list[str]:
    """A sentence a guard about the steps, counted from 1, that the policy would have skipped and it had computed."""
    steps: dict[str, list[str]] = {}
    for decided in log:
        if decided.branch == LEAD and decided.overruled:
            steps.setdefault(decided.why, []).append(str(decided.step + 1))
    return [f"{enumerated(found)} had to be computed: {guards.said(why)}." for why, found in steps.items()]


def enumerated(steps: Sequence[str]) -> str:
    *others, last = steps
    return f"Steps {', '.join(others)} and {last}" if others else f"Step {last}"
