"""Steps that are given: by whoever asks, or by a plan that was made from a calibration."""

from dataclasses import dataclass, field
from typing import ClassVar

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History
from videoserve_cache.steps.policy import Plan
from videoserve_cache.steps.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """`steps` has a letter a step: R is computed, . is skipped. ValueError for anything else."""

    name: ClassVar[str] = "mask"
    probe: ClassVar[None] = None
    steps: str
    forecast: Forecast | Fitted = field(default_factory=Forecast)
    guards: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        Plan(self.steps)

    def plan(self, schedule: Schedule) -> Plan:
        """ValueError when the mask is of another length than the schedule."""
        if len(self.steps) != schedule.n_steps:
            raise ValueError(
                f"The mask {self.steps} is for {len(self.steps)} steps; this video takes {schedule.n_steps}."
            )
        return Plan(self.steps)

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        return Decision(self.steps[ctx.step])


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Mask):
    """A mask that the dynamic programme found; `calibration` is the digest of what it was found from."""

    name: ClassVar[str] = "schedule"
    calibration: str
