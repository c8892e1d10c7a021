"""Measurements on an emulated box: plans against one rank, their bytes against the formulas, and their times."""

import time
from collections.abc import Sequence

from _emulated_cases import Case, each_rank_layer
from _emulated_links import EmulatedLinks
from _emulated_ranks import EmulatedRanks
from _emulated_step import Timed, calibrated, error, shifts, timed_step

from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.forecast import Model
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.volume import sent

# Float32, relative to the largest value.
PRECISION = 1e-5
SHIFT_BYTES, SHIFTS = 2_000_000, 4
CALIBRATION_S = 20.0
# How much of its own rate a link may miss: what does not reach it is no emulation of it.
LINK_MISSES = 0.03


class Bench:
    """The links and the ranks, and what has missed so far."""

    def __init__(self, links: EmulatedLinks, ranks: EmulatedRanks) -> None:
        self._links = links
        self._ranks = ranks
        self._began = time.monotonic()
        self._equal: set[ParallelPlan] = set()
        self._case: Case | None = None
        self.missed: list[str] = []
        self.packets = 1.0

    def shape(self, case: Case) -> None:
        self._case = case
        self._links.shape(case.rates)

    def measure_link(self, ring: ParallelPlan) -> float:
        """Sets `packets`, bytes on the wire a byte of payload; megabits/s of it while every card sends to the next."""
        assert self._case is not None
        before = sum(self._links.sent_bytes())
        passed = self._ranks(shifts, ring, SHIFT_BYTES, SHIFTS)
        self.packets = (sum(self._links.sent_bytes()) - before) / sum(each.sent.bytes for each in passed)
        rate = SHIFTS * SHIFT_BYTES * 8 / 1e6 / elapsed(passed)
        whole = rate * self.packets / self._case.rates.card
        self.hold(abs(whole - 1) <= LINK_MISSES, f"a link gives {whole:.2f} of its own rate")
        return rate

    def calibrate(self) -> Box:
        """The links as the product's own calibration finds them, told where the islands are as by a host's sysfs."""
        assert self._case is not None
        found: Calibration = self._ranks(calibrated, self._case.islands(len(self._ranks)), CALIBRATION_S)[0]
        return found.box

    def step(self, plan: ParallelPlan, model: Model, rounds: int) -> tuple[float, float]:
        """Seconds of the fastest of so many steps, and megabytes that a rank sends in it."""
        if plan not in self._equal:
            worst = max(self._ranks(error, plan))
            self.hold(worst <= PRECISION, f"{plan.name}: attention is {worst:.1e} off that of one rank")
            self._equal.add(plan)
        times = []
        for _ in range(rounds):
            steps = self._ranks(timed_step, plan, model)
            times.append(elapsed(steps))
            self._compare_bytes(plan, model, [step.sent for step in steps])
        return min(times), max(step.sent.bytes for step in steps) / 1e6

    def _compare_bytes(self, plan: ParallelPlan, model: Model, counted: Sequence[Traffic]) -> None:
        layer = each_rank_layer(model, plan)
        for rank, traffic in enumerate(counted):
            each = sent(layer, plan, rank % (plan.ring * plan.ulysses))
            formula = Traffic(bytes=each.bytes * model.layers, messages=each.messages * model.layers)
            self.hold(traffic == formula, f"{plan.name}: rank {rank} sent {traffic}, by the formula {formula}")

    def hold(self, true: bool, otherwise: str) -> None:
        """Notes what is not as it should be."""
        if not true:
            self.missed.append(otherwise)

    def conclude(self) -> None:
        """Prints what has missed; SystemExit when anything has."""
        print(
            f"\nAttention of {len(self._equal)} plans over {len(self._ranks)} ranks equalled one rank's within "
            f"{PRECISION:g} and was timed in {time.monotonic() - self._began:.0f} s."
            if not self.missed
            else "\nMissed:\n  " + "\n  ".join(dict.fromkeys(self.missed))
        )
        if self.missed:
            raise SystemExit(1)


def elapsed(steps: Sequence[Timed]) -> float:
    """From when the last rank began to when the last one was done."""
    return max(step.end for step in steps) - max(step.begin for step in steps)
