"""What a video costs here, as measured, and how far along a run is in those terms."""

import math
from collections.abc import Mapping

from videoserve.planning.plan import shape_key
from videoserve.types import VideoPlan
from videoserve.video.run import Run

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
        """The same, else the nearest measured shape's in proportion to its volume; None with nothing measured."""
        exact = self.exact(plan)
        whole = self.to_dict()
        if exact is not None or not whole:
            return exact
        wanted = volume(shape_key(plan))
        nearest = min(whole, key=lambda key: abs(math.log(volume(key) / wanted)))
        scale = wanted / volume(nearest)
        return {stage: seconds * scale for stage, seconds in whole[nearest].items()}

    def to_dict(self) -> dict[str, Seconds]:
        """The shapes of which every stage is known, for the broker to publish."""
        return {key: dict(known) for key, known in self._measured.items() if len(known) == len(STAGES)}


def volume(key: str) -> int:
    """Pixels of all frames of a shape key, doubled with guidance: what seconds are about proportional to."""
    size, _, guided = key.partition(":g")
    width, height, frames = (int(number) for number in size.split("x"))
    return width * height * frames * (1 + int(guided))


def position(run: Run) -> tuple[int, int]:
    """(steps taken, steps in all)."""
    if run.solver is None:
        return 0, run.plan.steps
    return run.solver.index, run.solver.total


def remaining(run: Run, costs: Mapping[str, float] | None) -> float | None:
    """Seconds of work that are left, at the pace of the run's own last steps where there were some.

    None with neither costs nor a step taken.
    """
    taken, total = position(run)
    if costs is None:
        if run.pace is None:
            return None
        costs = {stage: share * run.pace for stage, share in SHARES.items()}
    left = (total - taken) * (run.pace or costs["step"])
    return left + sum(costs[stage] for stage in LATER[run.stage])


def percent(run: Run, costs: Mapping[str, float] | None) -> int:
    """Finished work, 0 to 100, weighted by `costs`; never less than it was before. 100 is for what is stored."""
    costs = costs or SHARES
    taken, total = position(run)
    whole = costs["encode"] + total * costs["step"] + costs["decode"] + costs["write"]
    left = (total - taken) * costs["step"] + sum(costs[stage] for stage in LATER[run.stage])
    # Rounded down: what is not stored is never 100.
    run.progress = max(run.progress, 100 if run.stage == "done" else min(99, int(100 * (1 - left / whole))))
    return run.progress
