"""Every step is computed, and nothing is kept or measured."""

from dataclasses import dataclass, field
from typing import ClassVar

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History
from videoserve_cache.steps.policy import Plan
from videoserve_cache.steps.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """The policy of a request that asks for none."""

    name: ClassVar[str] = "off"
    probe: ClassVar[None] = None
    forecast: Forecast = field(default_factory=Forecast)
    guards: Guards = field(default_factory=Guards)

    def plan(self, schedule: Schedule) -> Plan:
        return Plan.of(lambda step: False, schedule.n_steps)

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        return Decision.RUN
