"""The plans that were chosen on a host, kept on disk by what they were chosen for. No torch."""

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.planner import Forecasted
from videoserve_kernels.kept_json import read_json, write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan, what it was forecast to take a step, and what it took where that was measured."""

    plan: ParallelPlan
    step_s: float
    measured_s: float | None

    @classmethod
    def of(cls, one: Forecasted) -> "Choice":
        return cls(plan=one.plan, step_s=one.step_s, measured_s=one.measured_s)

    def to_dict(self) -> dict[str, Any]:
        return {"plan": self.plan.name, "step_s": self.step_s, "measured_s": self.measured_s}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> "Choice":
        return cls(plan=ParallelPlan.parse(told["plan"]), step_s=told["step_s"], measured_s=told["measured_s"])


class Choices:
    """The choices of one host, under keys that name model, shape, ranks and whatever else they depend on."""

    def __init__(self, data: Path, fingerprint: str) -> None:
        self._path = data / "plans" / f"{fingerprint}.json"

    def get(self, key: str) -> Choice | None:
        """What was kept last; None when nothing was."""
        told = self._read().get(key)
        return Choice.from_dict(told) if told else None

    def keep(self, key: str, choice: Choice) -> None:
        """Keeps it in place of an earlier one; other processes may keep theirs at the same time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_json(self._path, self._read() | {key: choice.to_dict()})

    def forget(self) -> None:
        """Lets go of all of them, so that they are made anew."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        told: dict[str, Any] = read_json(self._path) or {}
        return told
