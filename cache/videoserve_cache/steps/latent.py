"""EasyCache's rule: skip while the change that the latents foretell adds up to less than a threshold."""

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
class Latent:
    """`threshold` bounds the summed relative changes of the output since the last computed step; 0 skips nothing.

    A skipped step launches nothing of the transformer.
    """

    name: ClassVar[str] = "latent"
    threshold: float
    forecast: Forecast = field(default_factory=Forecast)
    guards: Guards = field(default_factory=Guards)

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    @property
    def probe(self) -> ProbeKind | None:
        return "latent" if self.threshold > 0 else None

    def plan(self, schedule: Schedule) -> Plan | None:
        return plan_of_none(schedule) if self.threshold == 0 else None

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        """The scalar is the foretold change of this step against the one before."""
        if scalar is None:
            return Decision.RUN
        return Decision.SKIP if history.drifted + scalar < self.threshold else Decision.RUN
