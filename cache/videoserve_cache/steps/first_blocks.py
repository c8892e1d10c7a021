"""FBCache and DBCache: the first blocks tell whether the middle ones are worth computing."""

from dataclasses import dataclass, field
from typing import ClassVar

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History
from videoserve_cache.steps.policy import Plan, ProbeKind
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.threshold import check_threshold, plan_of_none


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstBlocks:
    """`first` blocks are always computed and probed, `last` ones always computed; those between may be skipped.

    Skipped while what the first blocks add differs by less than `threshold`, relatively, from the last computed step's;
    0 skips nothing. first 1 and last 0 is FBCache.
    """

    name: ClassVar[str] = "first_blocks"
    threshold: float
    first: int = 1
    last: int = 0
    forecast: Forecast = field(default_factory=Forecast)
    guards: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.first < 1:
            raise ValueError(f"first is {self.first}; at least the first block is computed: 1 or more.")
        if self.last < 0:
            raise ValueError(f"last is {self.last}; it is a number of blocks: 0 or more.")
        if self.forecast.replay:
            # What its first blocks made of a skipped step is not kept.
            raise ValueError("replay is True; the policy first_blocks cannot take a step again: False.")

    @property
    def probe(self) -> ProbeKind | None:
        return "blocks" if self.threshold > 0 else None

    def plan(self, schedule: Schedule) -> Plan | None:
        return plan_of_none(schedule) if self.threshold == 0 else None

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        """The scalar is the change against the last computed step, so nothing adds up here."""
        return Decision.SKIP if scalar is not None and scalar < self.threshold else Decision.RUN

    def middle(self, blocks: int) -> range:
        """The blocks that a skipped step leaves out, of a transformer with so many; empty when there are none left."""
        return range(min(self.first, blocks), max(min(self.first, blocks), blocks - self.last))
