"""The threshold of policies that measure: what it may be, and what 0 means."""

from math import isfinite

from videoserve_cache.steps.policy import Plan
from videoserve_cache.steps.schedule import Schedule


def check_threshold(threshold: float) -> None:
    """ValueError for anything but a finite number from 0 on."""
    if not isfinite(threshold) or threshold < 0:
        raise ValueError(f"threshold is {threshold}; it is a relative change: 0 (skip nothing) or more.")


def plan_of_none(schedule: Schedule) -> Plan:
    """The plan of a threshold of 0: with nothing to skip there is nothing to measure."""
    return Plan.of(lambda step: False, schedule.n_steps)
