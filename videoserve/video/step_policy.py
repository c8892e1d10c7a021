"""Which policy a run's step cache has: what its plan asks for, as far as what is known of the model allows it."""

import logging
from typing import Any

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.video.calibrate import SAMPLES, Calibrations, Seconds, subject_of
from videoserve.video.load import Components
from videoserve.video.progress import Costs
from videoserve.video.run import Run, need
from videoserve.video.step_cache import begin, schedule_of
from videoserve.video.watch import Watch
from videoserve_cache.steps.curve import Curves
from videoserve_cache.steps.off import Off
from videoserve_cache.steps.parse import parse
from videoserve_cache.steps.policy import described
from videoserve_cache.steps.request import CacheRequest, UnusableCacheError
from videoserve_cache.steps.resolve import Resolved, asked, resolve
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

log = logging.getLogger(__name__)


class StepPolicies:
    """Gives runs their step caches, all under one budget of bytes, and learns from those that have none yet."""

    def __init__(self, settings: Settings, calibrating: bool = False) -> None:
        self._calibrating = calibrating
        self.budget = Budget(settings.step_cache_bytes)
        self._calibrations = Calibrations(settings.data)

    def begin(self, run: Run, components: Components) -> list[str]:
        """Chooses the policy of a run whose solver has started; sentences about what is not as asked.

        JobFailed for what cannot be done, and for every change that a strict request would need.
        """
        request, schedule, curves = parse(run.plan.cache), schedule_of(run), None
        if self._calibrating:
            run.watch = watch_of(run, components)
            return []
        if request.calibrated:
            curves = self.curves(run, components)
            if curves is None:
                known = self._calibrations.count(subject_of(run, components), schedule)
                return [self.uncalibrated(run, components, request, known)]
            run.record.calibration = curves.calibration.digest
        chosen = self.chosen(request, schedule, curves)
        run.record.policy, run.record.foretold = described(chosen.policy), foretold(chosen)
        begin(run, chosen.policy, self.budget, components.ranks.meshes.of(run.guided))
        return []

    def curves(self, run: Run, components: Components) -> Curves | None:
        """Of the calibration of this run's likes; None where there are too few samples."""
        return self._calibrations.curves(subject_of(run, components), schedule_of(run))

    def learn(self, run: Run, components: Components, costs: Costs) -> None:
        """Adds what a finished run was watched for to the calibration of its likes."""
        seconds = costs.exact(run.plan)
        if run.watch is None or run.watch.sample is None or seconds is None:
            return
        # One that began where an earlier request had been is not all of a video.
        if len(run.watch.sample.output) < need(run.solver, "solver").total:
            return
        subject = subject_of(run, components)
        known = self._calibrations.add(
            subject, schedule_of(run), run.watch.sample, Seconds.of(seconds, run.watch.skip_s)
        )
        log.info("calibration", extra={"job": run.id, "samples": known})

    def chosen(self, request: CacheRequest, schedule: Schedule, curves: Curves | None) -> Resolved:
        try:
            return resolve(request, schedule, curves)
        except UnusableCacheError as error:
            raise JobFailed("invalid_value", str(error)) from None

    def uncalibrated(self, run: Run, components: Components, request: CacheRequest, known: int) -> str:
        """Has every step computed, which is always right, and watched; JobFailed for a strict request."""
        needs = f"{asked(request)} needs a calibration, made of {SAMPLES} uncached videos like this one; there "
        needs += "is one" if known == 1 else f"are {known}"
        if run.job.request.get("strict"):
            raise JobFailed("invalid_value", f"{needs}.")
        run.watch = watch_of(run, components)
        run.record.policy = described(Off())
        return f"{needs}, so every step is computed."


def watch_of(run: Run, components: Components) -> Watch:
    given = components.layout.clean_first_frame and run.plan.latent_shape[1] > 1
    return Watch(given=int(given))


def foretold(chosen: Resolved) -> dict[str, Any] | None:
    """What a calibration says of a policy: seconds of the whole video, decibels of its latents; None without one."""
    if chosen.seconds is None:
        return None
    point = chosen.point
    loss = {} if point is None else {"mean_db": round(point.mean_db, 2), "worst_db": round(point.worst_db, 2)}
    return {"seconds": round(chosen.seconds, 3), **loss}
