"""MagCache's rule: how much longer or shorter the residual gets at each step is known from a calibration."""

from dataclasses import dataclass, field
from math import ceil
from typing import ClassVar

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History
from videoserve_cache.steps.policy import Plan, simulated
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.threshold import check_threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Magnitude:
    """Skips while Σ|1 - Πγ| since the last computed step stays under `threshold`; the first `retain` share is computed.

    `ratios` has a γ a step: the norm of its residual by that of the step before, 1 at the first.
    """

    name: ClassVar[str] = "magnitude"
    probe: ClassVar[None] = None
    threshold: float
    ratios: tuple[float, ...]
    retain: float = 0.2
    forecast: Forecast = field(default_factory=lambda: Forecast(order=0))
    guards: Guards = field(default_factory=lambda: Guards(warmup=1))

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if not 0 <= self.retain <= 1:
            raise ValueError(f"retain is {self.retain}; it is a share of the steps: 0 to 1.")

    def plan(self, schedule: Schedule) -> Plan:
        """ValueError when the ratios were measured with another number of steps."""
        if len(self.ratios) != schedule.n_steps:
            raise ValueError(f"The calibration is of {len(self.ratios)} steps; this video takes {schedule.n_steps}.")
        # Where the error is counted from depends on which steps are computed, the guards' among them.
        return Plan(simulated(self, schedule))

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        if ctx.step < ceil(self.retain * ctx.n_steps) or history.last_run is None:
            return Decision.RUN
        return Decision.SKIP if self.error(history.last_run, ctx.step) < self.threshold else Decision.RUN

    def error(self, run: int, step: int) -> float:
        """Σ|1 - Πγ| over the steps after `run` up to and with `step`."""
        total, product = 0.0, 1.0
        for ratio in self.ratios[run + 1 : step + 1]:
            product *= ratio
            total += abs(1 - product)
        return total
