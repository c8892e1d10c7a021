"""What was measured of a model's uncached videos, from which static plans are made; sealed with what it is of."""

import hashlib
import hmac
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from videoserve_cache.digest import digest
from videoserve_cache.steps.forecast import Stream
from videoserve_cache.steps.schedule import Schedule

KIND = "step-calibration"
VERSION = 1


class UnusableCalibrationError(ValueError):
    """A calibration is broken, forged, or of something else; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a calibration is valid for, and nothing else: one changed field, another calibration.

    `model` is the digest of the weights; `adapters` digests with their weights; `size` (frames, height, width) of the
    video; `guidance` the scale of each expert.
    """

    model: str
    adapters: tuple[str, ...]
    solver: str
    steps: int
    size: tuple[int, int, int]
    dtype: str
    guidance: tuple[float, ...]

    @property
    def digest(self) -> str:
        return digest("step-calibration-subject", VERSION, asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One uncached video: the inner products of what its steps made, float64 [n, n], in units of |final latents|².

    `output` is of the guided velocity of each step, `residual` of velocity - latents.
    """

    output: NDArray[np.float64]
    residual: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Samples, and seconds: of a computed step, of a skipped one, and of all the rest of a video.

    `growth` is by how much errors at the end were larger than foretold, where that was measured.
    """

    subject: Subject
    schedule: Schedule
    samples: tuple[Sample, ...]
    run_s: float
    skip_s: float
    fixed_s: float
    growth: float = 1.0

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("A calibration has no samples; it takes one at least.")

    def grams(self, of: Stream) -> NDArray[np.float64]:
        """The samples' inner products, float64 [samples, n, n]."""
        return np.stack([getattr(sample, of) for sample in self.samples])

    @property
    def ratios(self) -> tuple[float, ...]:
        """The norm of each step's residual by that of the step before, 1 at the first; the mean of the samples."""
        norms = np.sqrt(self.grams("residual").diagonal(axis1=1, axis2=2))  # [samples, n]
        return (1.0, *(norms[:, 1:] / norms[:, :-1]).mean(axis=0).tolist())

    def seconds(self, runs: int) -> float:
        """What a video takes with so many computed steps."""
        return self.fixed_s + runs * self.run_s + (self.schedule.n_steps - runs) * self.skip_s

    @property
    def digest(self) -> str:
        """Of everything measured, chained to the digest of what it was measured on."""
        return digest(KIND, VERSION, [self.subject.digest, self._measured()])

    def check(self, subject: Subject) -> None:
        """UnusableCalibrationError, with the first field that differs, when it is not of this subject."""
        for field in fields(Subject):
            mine, theirs = getattr(self.subject, field.name), getattr(subject, field.name)
            if mine != theirs:
                raise UnusableCalibrationError(
                    f"The calibration was measured with another {field.name}: {mine}, and this is {theirs}."
                )

    def save(self, path: Path, key: bytes) -> None:
        """Writes it to a file, sealed with `key`, in place of an earlier one."""
        content = {"subject": asdict(self.subject), "measured": self._measured()}
        told = {"kind": KIND, "version": VERSION, **content, "digest": self.digest, "seal": seal(key, self.digest)}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not there: another process may read it at any time.
        half = path.with_name(f"{path.name}.{os.getpid()}")
        half.write_text(json.dumps(told, allow_nan=False))
        half.replace(path)

    @classmethod
    def load(cls, path: Path, key: bytes) -> "Calibration":
        """What `save` wrote with the same key. UnusableCalibrationError; FileNotFoundError."""
        try:
            told = json.loads(path.read_text())
            if (told["kind"], told["version"]) != (KIND, VERSION):
                raise UnusableCalibrationError(f"{path.name} is a {told['kind']} of version {told['version']}.")
            read = cls._of(told["subject"], told["measured"])
        except (KeyError, TypeError, json.JSONDecodeError):
            raise UnusableCalibrationError(f"{path.name} is not a calibration.") from None
        if read.digest != told["digest"]:
            raise UnusableCalibrationError(f"{path.name} has been changed since it was measured.")
        if not hmac.compare_digest(seal(key, read.digest), str(told["seal"])):
            raise UnusableCalibrationError(f"{path.name} is not sealed with this server's key.")
        return read

    def _measured(self) -> dict[str, Any]:
        samples = [{"output": s.output.tolist(), "residual": s.residual.tolist()} for s in self.samples]
        times = {name: getattr(self, name) for name in ("run_s", "skip_s", "fixed_s", "growth")}
        return {"schedule": asdict(self.schedule), "samples": samples, **times}

    @classmethod
    def _of(cls, subject: dict[str, Any], measured: dict[str, Any]) -> "Calibration":
        samples = tuple(
            Sample(**{of: np.array(rows, dtype=np.float64) for of, rows in sample.items()})
            for sample in measured["samples"]
        )
        schedule = Schedule(**tupled(measured["schedule"]))
        return cls(**(measured | {"subject": Subject(**tupled(subject)), "schedule": schedule, "samples": samples}))


def seal(key: bytes, content: str) -> str:
    """HMAC-SHA256 (hex) of a digest; with an empty key it tells broken files only, not forged ones."""
    return hmac.new(key, content.encode(), hashlib.sha256).hexdigest()


def tupled(told: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for name, value in told.items()
    }
