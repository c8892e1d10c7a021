"""A trace as a cache of any size and policy would have been asked: what replaying goes through."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, Self

from videoserve_cache.trace.line import Line

# Asked for; kept without being asked for, as a checkpoint is.
Use = Literal["ask", "keep"]
USES: Final[dict[str, Use]] = {"hit": "ask", "miss": "ask", "put": "keep"}


@dataclass(frozen=True, slots=True)
class Access:
    """`entry` counts from 0 in the order of first appearance; `size` in bytes, `cost_s` in seconds to recompute it."""

    use: Use
    entry: int
    kind: str
    size: int
    cost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accesses:
    """`unvalued` were asked for, and nobody ever came to compute them: their size and cost are not known."""

    all: list[Access]
    unvalued: int

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Self:
        """An entry that spared look-ups of others when it was recorded spares them in every replay.

        What operators dropped is not told by a trace: a replay may find it.
        """
        lines = list(lines)
        values = {line.entry: (line.size, line.cost_s) for line in lines if line.size}
        numbers: dict[str, int] = {}
        found = [
            Access(USES[line.what], numbers.setdefault(line.entry, len(numbers)), line.kind, *values[line.entry])
            for line in lines
            if line.entry in values
        ]
        unvalued = sum(USES[line.what] == "ask" and line.entry not in values for line in lines)
        return cls(all=found, unvalued=unvalued)
