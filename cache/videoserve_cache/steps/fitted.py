"""What a skipped step is taken to be where a calibration has told how much of it each computed one is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from videoserve_cache.steps.forecast import Stream

Shares = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A skipped step is a sum of computed outputs: `shares` has a row a step, of the last anchors, oldest first.

    `again` has the rows for when the next computed step is known as well, which is the last anchor then; a step that
    has one is taken once more. Rows of computed steps are empty.
    """

    of: ClassVar[Stream] = "output"
    shares: Shares
    again: Shares = ()

    @property
    def replay(self) -> bool:
        return any(self.again)

    @property
    def depth(self) -> int:
        """How many computed steps are kept."""
        return max(map(len, (*self.shares, *self.again)), default=0) or 1

    def row(self, to: int, newest: int) -> tuple[float, ...]:
        """The shares in step `to` when `newest` is the last step that has been computed."""
        return self.again[to] if newest > to else self.shares[to]

    def weights(self, steps: Sequence[int], sigmas: Sequence[float], to: int) -> list[float]:
        """What each anchor step, oldest first, counts in step `to`."""
        row = self.row(to, steps[-1])
        return [0.0] * (len(steps) - len(row)) + list(row)
