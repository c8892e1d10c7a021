"""What is compared: our policies, fewer steps, both together, and the rivals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from videoserve.local.pareto.cases import Case
from videoserve.local.pareto.clip import Clip, Family
from videoserve.local.pareto.ours import Ours, Prepared
from videoserve.local.pareto.rivals import cache_dit_caches, diffusers_caches
from videoserve.local.pareto.theirs import Install, Theirs
from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.curve import Curves
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.resolve import resolve
from videoserve_cache.steps.schedule import Schedule

# Shares of the full number of steps.
RUNS = (0.75, 0.65, 0.5, 0.4, 0.35, 0.3)
FEWER = (0.7, 0.5, 0.35)
# Fewer steps, and of those the computed ones.
COMBINED = ((0.7, 0.5), (0.7, 0.35))
POLICIES: tuple[dict[str, Any], ...] = (
    {"policy": "latent", "threshold": 0.06},
    {"policy": "latent", "threshold": 0.12},
    {"policy": "first_blocks", "threshold": 0.12, "order": 1},
    {"policy": "magnitude", "threshold": 0.06, "order": 1},
)
UNCACHED = "diffusers uncached"
# Found greedily on two prompts in a first probe; for 20 steps.
MASK = "RR....R.R.R.R.R.R.R."


@dataclass(frozen=True, slots=True)
class Row:
    """`theirs` rows are made by diffusers' pipeline."""

    name: str
    family: Family
    make: Callable[[Case, Prepared], Clip]

    @property
    def theirs(self) -> bool:
        return self.family in ("diffusers", "cache-dit")


def our_rows(ours: Ours, calibrations: dict[int, Calibration]) -> list[Row]:
    """The rows that every case has: what a calibration plans, and fewer steps; then our other policies."""
    steps = ours.steps
    counts = sorted({max(2, round(share * steps)) for share in RUNS}, reverse=True)
    rows = [planned(ours, calibrations[steps], f"schedule {runs}", "schedule", runs) for runs in counts]
    for count in sorted({max(1, round(share * steps)) for share in FEWER}, reverse=True):
        rows.append(Row(f"{count} steps", "fewer steps", making(ours, count)))
    return rows


def other_rows(ours: Ours, calibrations: dict[int, Calibration]) -> list[Row]:
    """Our other policies, fewer steps with a cache, and the floor."""
    steps, rows = ours.steps, [Row("uncached again", "floor", making(ours, ours.steps))]
    for fewer, share in COMBINED:
        count, runs = round(fewer * steps), round(share * steps)
        rows.append(planned(ours, calibrations[count], f"{count} steps, schedule {runs}", "combined", runs))
    asked = [*POLICIES, {"policy": "mask", "steps": MASK}] if steps == len(MASK) else [*POLICIES]
    for told in asked:
        name = " ".join(str(value) for value in told.values())
        schedule = calibrations[steps].schedule
        policy = resolve(parse(told), schedule, Curves(calibrations[steps])).policy
        rows.append(Row(name, "policies", making(ours, steps, policy)))
    return rows


def planned(ours: Ours, calibration: Calibration, name: str, family: Family, runs: int) -> Row:
    """A plan of the calibration with at most so many computed steps."""
    schedule: Schedule = calibration.schedule
    policy = resolve(parse({"policy": "schedule", "runs": runs}), schedule, Curves(calibration)).policy
    return Row(name, family, making(ours, schedule.n_steps, policy))


def making(ours: Ours, steps: int, policy: Policy | None = None) -> Callable[[Case, Prepared], Clip]:
    return lambda case, made: ours.clip(made, steps=steps, policy=policy)


def rival_rows(theirs: Theirs, ratios: list[float], steps: int) -> list[Row]:
    """diffusers' pipeline without and with each cache."""
    rows = [Row(UNCACHED, "diffusers", lambda case, made: theirs.clip(case, made, None))]
    found: dict[str, Install] = diffusers_caches(ratios)
    rows += [Row(name, "diffusers", cached(theirs, install)) for name, install in found.items()]
    rows += [Row(name, "cache-dit", cached(theirs, install)) for name, install in cache_dit_caches(steps).items()]
    return rows


def cached(theirs: Theirs, install: Install) -> Callable[[Case, Prepared], Clip]:
    return lambda case, made: theirs.clip(case, made, install)


def calibrated_steps(steps: int) -> list[int]:
    """The numbers of steps that rows need a calibration of."""
    return sorted({steps, *(round(fewer * steps) for fewer, _ in COMBINED)})
