"""A policy from what `described` said of it: in another process, or on another rank."""

from collections.abc import Mapping
from typing import Any

from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.magnitude import Magnitude
from videoserve_cache.steps.mask import Mask, Planned
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.policy import Policy

KINDS: dict[str, type[Policy]] = {kind.name: kind for kind in (Off, Mask, Planned, Latent, FirstBlocks, Magnitude)}


def rebuilt(told: Mapping[str, Any]) -> Policy:
    """The very policy; lists, which JSON makes of tuples, are tuples again."""
    own: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
    kind = KINDS[own.pop("policy")]
    parts = {"forecast": rebuilt_forecast(own["forecast"]), "guards": Guards(**own["guards"])}
    return kind(**(own | parts))


def rebuilt_forecast(told: Mapping[str, Any]) -> Forecast | Fitted:
    """The very forecast, from its fields."""
    if "shares" in told:
        return Fitted(shares=tuple(map(tuple, told["shares"])), again=tuple(map(tuple, told["again"])))
    return Forecast(**told)
