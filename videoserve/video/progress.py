"""What a video costs here, as measured, and how far along a run is in those terms."""

from collections.abc import Mapping

from videoserve.planning.plan import costs_of, shape_key
from videoserve.types import VideoPlan
from videoserve.video.run import Run
from videoserve_cache.steps.context import Decision

Seconds = dict[str, float]

STAGES = ("encode", "step", "decode", "write")
# Besides the steps, what is left to do in each stage.
LATER = {
    "encode": ("encode", "decode", "write"),
    "denoise": ("decode", "write"),
    "decode": ("decode", "write"),
    "write": ("write",),
    "done": (),
}
# What the stages cost in steps, until something has been measured.
SHARES = {"encode": 0.5, "step": 1.0, "decode": 4.0, "write": 0.5}
# How much the newest measurement counts against all before.
NEWEST = 0.3


class Costs:
    """Measured seconds by shape key: one encode, one step alone, one decode, one write."""

    def __init__(self) -> None:
        self._measured: dict[str, Seconds] = {}

    def record(self, key: str, stage: str, seconds: float) -> None:
        known = self._measured.setdefault(key, {})
        known[stage] = seconds if stage not in known else (1 - NEWEST) * known[stage] + NEWEST * seconds

    def restore(self, measured: Mapping[str, Seconds]) -> None:
        """Begins with what an earlier process has measured, as `to_dict` told it."""
        self._measured = {key: dict(known) for key, known in measured.items()}

    def exact(self, plan: VideoPlan) -> Seconds | None:
        """What was measured for this very shape; None until every stage has been."""
        known = self._measured.get(shape_key(plan))
        return dict(known) if known is not None and len(known) == len(STAGES) else None

    def of(self, plan: VideoPlan) -> Seconds | None:
        """The same, else as the API estimates it from other shapes; None with nothing measured."""
        return costs_of(plan, self.to_dict())

    def to_dict(self) -> dict[str, Seconds]:
        """The shapes of which every stage is known, for the broker to publish."""
        return {key: dict(known) for key, known in self._measured.items() if len(known) == len(STAGES)}


def position(run: Run) -> tuple[int, int]:
    """(steps taken, steps in all)."""
    if run.solver is None:
        return 0, run.plan.steps
    return run.solver.index, run.solver.total


def shown(run: Run) -> tuple[int, int]:
    """The same with the steps of the reference, where there is one or will be."""
    taken, total = position(run)
    if run.reference is not None:
        return total + taken, 2 * total
    return taken, 2 * total if verifies(run) else total


def verifies(run: Run) -> bool:
    """Whether a reference is to follow, as far as is known: not after a cache that has skipped nothing."""
    return run.steps is not None and run.stage == "denoise" and bool(run.plan.cache.get("verify"))


def to_compute(run: Run) -> tuple[float, float]:
    """(steps still to be computed, steps computed in all), the reference's among them.

    With a cache that decides as it goes, about.
    """
    taken, total = position(run)
    done = run.record.computed.count(Decision.RUN)
    left: float = total - taken
    if run.reference is not None:
        return left, done + total
    if run.steps is not None and run.steps.plan is not None:
        left = run.steps.plan[taken:].count(Decision.RUN)
    elif run.steps is not None and taken > 0:
        left *= done / taken
    if verifies(run):
        left += total
    return left, done + left


def remaining(run: Run, costs: Mapping[str, float] | None) -> float | None:
    """Seconds of work that are left, at the pace of the run's own last steps where there were some.

    None with neither costs nor a step taken.
    """
    if costs is None:
        if run.pace is None:
            return None
        costs = {stage: share * run.pace for stage, share in SHARES.items()}
    left = to_compute(run)[0] * (run.pace or costs["step"])
    return left + sum(costs[stage] for stage in LATER[run.stage])


def percent(run: Run, costs: Mapping[str, float] | None) -> int:
    """Finished work, 0 to 100, weighted by `costs`; never less than it was before. 100 is for what is stored."""
    costs = costs or SHARES
    steps_left, steps = to_compute(run)
    whole = costs["encode"] + steps * costs["step"] + costs["decode"] + costs["write"]
    left = steps_left * costs["step"] + sum(costs[stage] for stage in LATER[run.stage])
    # Rounded down: what is not stored is never 100.
    run.progress = max(run.progress, 100 if run.stage == "done" else min(99, int(100 * (1 - left / whole))))
    return run.progress
