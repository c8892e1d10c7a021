"""What this server has measured of uncached videos, for choosing policies: sealed files in its data folder."""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from videoserve.video.kept_curves import KeptCurves
from videoserve.video.load import Components
from videoserve.video.run import Run, need
from videoserve.video.step_cache import spelled
from videoserve_cache.steps.calibration import Calibration, Sample, Subject, UnusableCalibrationError
from videoserve_cache.steps.curve import Curves
from videoserve_cache.steps.schedule import Schedule

log = logging.getLogger(__name__)

# On the demo model a policy chosen from four of them missed its quality on every third other video, by up to 8 dB; from
# eight on every eleventh, by 1.5 dB at most.
SAMPLES = 8
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of a computed step, of a skipped one, and of all the rest of a video."""

    run_s: float
    skip_s: float
    fixed_s: float

    @classmethod
    def of(cls, costs: Mapping[str, float], skip_s: float) -> "Seconds":
        """From what the stages of a shape take."""
        fixed = costs["encode"] + costs["decode"] + costs["write"]
        return cls(run_s=costs["step"], skip_s=skip_s, fixed_s=fixed)


class Calibrations:
    """One file a subject; several processes may read and add at any time."""

    def __init__(self, data: Path) -> None:
        self._folder = data / "calibrations"
        self._key_file = data / "calibration.key"
        # By file: when it was written, and its curves, which take a second to make.
        self._read: dict[Path, tuple[int, Curves]] = {}

    def curves(self, subject: Subject, schedule: Schedule) -> Curves | None:
        """Of this very subject; None where there are fewer samples than it takes."""
        found = self.get(subject, schedule)
        if found is None or len(found.samples) < SAMPLES:
            return None
        path = self._path(subject)
        written = path.stat().st_mtime_ns
        if path not in self._read or self._read[path][0] != written:
            self._read[path] = written, KeptCurves(found, path.with_suffix(".curve.json"), self._key())
        return self._read[path][1]

    def count(self, subject: Subject, schedule: Schedule) -> int:
        """How many samples there are."""
        found = self.get(subject, schedule)
        return 0 if found is None else len(found.samples)

    def get(self, subject: Subject, schedule: Schedule) -> Calibration | None:
        """The calibration as it is on disk. One that is broken, forged or of something else is none, and logged."""
        try:
            found = Calibration.load(self._path(subject), self._key())
            found.check(subject)
        except FileNotFoundError:
            return None
        except UnusableCalibrationError as error:
            log.warning("a calibration is not used", extra={"reason": str(error)})
            return None
        return found if found.schedule == schedule else None

    def add(self, subject: Subject, schedule: Schedule, sample: Sample, seconds: Seconds) -> int:
        """Puts a sample to those there are, unless it is one of them; the newest seconds count. How many there are."""
        with self._locked():
            known = self.get(subject, schedule)
            before = () if known is None else known.samples
            samples = before if any(same(sample, other) for other in before) else (*before, sample)
            calibration = Calibration(
                subject=subject,
                schedule=schedule,
                samples=samples,
                run_s=seconds.run_s,
                skip_s=seconds.skip_s,
                fixed_s=seconds.fixed_s,
            )
            calibration.save(self._path(subject), self._key())
        return len(samples)

    def _path(self, subject: Subject) -> Path:
        return self._folder / f"{subject.digest}.json"

    def _key(self) -> bytes:
        """This data folder's own, made when it is first needed."""
        if not self._key_file.exists():
            self._key_file.parent.mkdir(parents=True, exist_ok=True)
            mine = self._key_file.with_name(f"{self._key_file.name}.{os.getpid()}")
            mine.touch(mode=0o600)
            mine.write_bytes(os.urandom(KEY_BYTES))
            try:
                # Never in place of one that another process has just made.
                os.link(mine, self._key_file)
            except FileExistsError:
                pass
            finally:
                mine.unlink()
        return self._key_file.read_bytes()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def subject_of(run: Run, components: Components) -> Subject:
    """What a calibration of this run is valid for."""
    plan, solver = run.plan, need(run.solver, "solver")
    scales = (plan.guidance,) if plan.guidance_2 is None else (plan.guidance, plan.guidance_2)
    return Subject(
        model=f"{components.digest}:{components.config}",
        adapters=spelled(plan.loras),
        solver=f"{components.solver.scheduler.__name__}:{solver.flow_shift}",
        steps=plan.steps,
        size=(plan.num_frames, plan.height, plan.width),
        dtype=str(components.dtype).removeprefix("torch."),
        # At 1 and below there is no guidance, whatever the number.
        guidance=scales if run.guided else (1.0,),
    )


def same(one: Sample, other: Sample) -> bool:
    return np.array_equal(one.output, other.output) and np.array_equal(one.residual, other.residual)
