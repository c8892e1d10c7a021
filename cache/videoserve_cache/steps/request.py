"""What a request asks of the step cache."""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards

Quality = Literal["exact", "high", "balanced", "fast"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)
FORECAST: dict[str, type] = {"order": int, "axis": str, "of": str, "replay": bool}
GUARDS: dict[str, type] = {"warmup": int, "max_skips": int}
# What each policy takes, and of which type; the first one must be given.
POLICIES: dict[str, dict[str, type]] = {
    "off": {},
    "mask": {"steps": str, **FORECAST, **GUARDS},
    "latent": {"threshold": float, **FORECAST, **GUARDS},
    "first_blocks": {"threshold": float, "first": int, "last": int, **FORECAST, **GUARDS},
    "magnitude": {"threshold": float, "retain": float, **FORECAST, **GUARDS},
    "schedule": {"runs": int, **GUARDS},
}
WAYS = ("policy", "quality", "time_budget_s")


class UnusableCacheError(ValueError):
    """The field cannot be used: `param` says which part of it, the message what is allowed."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """A policy with its parameters, or a quality, or a time budget; `verify` also computes the uncached video."""

    policy: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    quality: Quality | None = None
    time_budget_s: float | None = None
    verify: bool = False
    near: float | None = None
    reuse: bool = True

    @property
    def calibrated(self) -> bool:
        """Whether it takes a calibration to choose the policy."""
        return self.policy in ("magnitude", "schedule") or (self.policy is None and self.quality != "exact")

    @property
    def guards(self) -> Guards:
        """As given, or the defaults."""
        # A calibration knows what follows from the first step alone; everything else needs two to see a change.
        defaults = {"warmup": 1} if self.calibrated else {}
        return Guards(**(defaults | self._given(Guards)))

    def forecast(self, **defaults: Any) -> Forecast:
        """As given, or these defaults, or the general ones."""
        return Forecast(**(defaults | self._given(Forecast)))

    def own(self) -> dict[str, Any]:
        """The parameters that belong to the policy itself."""
        return {name: value for name, value in self.parameters.items() if name not in FORECAST and name not in GUARDS}

    def to_dict(self) -> dict[str, Any]:
        """The request field in one spelling, as JSON; whatever computes every step is quality exact."""
        also: dict[str, Any] = {"verify": True} if self.verify else {}
        also |= {} if self.near is None else {"near": self.near}
        also |= {} if self.reuse else {"reuse": False}
        if self.policy not in (None, "off"):
            return {"policy": self.policy, **dict(sorted(self.parameters.items())), **also}
        if self.time_budget_s is not None:
            return {"time_budget_s": self.time_budget_s, **also}
        return {"quality": self.quality or "exact", **also}

    def _given(self, kind: type[Guards] | type[Forecast]) -> dict[str, Any]:
        return {f.name: self.parameters[f.name] for f in fields(kind) if f.name in self.parameters}
