"""What has been decided for a branch since its cache was last empty: the only memory that policies have."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from videoserve_cache.steps.context import Decision


@dataclass(frozen=True, slots=True)
class Past:
    """A step that has been decided; `scalar` is what the probe said, None where nothing was probed."""

    step: int
    decision: Decision
    scalar: float | None = None

    def to_list(self) -> list[Any]:
        """As JSON can hold it, bit for bit, infinities included."""
        return [self.step, self.decision.value, None if self.scalar is None else self.scalar.hex()]

    @classmethod
    def from_list(cls, told: Sequence[Any]) -> "Past":
        step, decision, scalar = told
        return cls(step, Decision(decision), None if scalar is None else float.fromhex(scalar))


@dataclass(frozen=True, slots=True)
class History:
    """Steps in their order, of one expert and one branch."""

    past: tuple[Past, ...] = ()

    def then(self, past: Past) -> "History":
        return History((*self.past, past))

    @property
    def runs(self) -> int:
        return sum(past.decision is Decision.RUN for past in self.past)

    @property
    def last_run(self) -> int | None:
        """The last step that was computed."""
        return next((past.step for past in reversed(self.past) if past.decision is Decision.RUN), None)

    @property
    def drifted(self) -> float:
        """The sum of what the probe said at the steps skipped since the last computed one."""
        since = -1 if self.last_run is None else self.last_run
        return sum(past.scalar or 0.0 for past in self.past if past.step > since)
