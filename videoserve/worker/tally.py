"""What a worker counts for Prometheus, from the claims it makes and the events its engine emits."""

import time

from videoserve.metrics import Meter
from videoserve.types import Event


class Tally:
    """Per job: when it was claimed, which stage it is in and since when. The counts are in `meter`."""

    def __init__(self, kind: str, meter: Meter):
        self.meter = meter
        self._kind = kind
        self._claimed: dict[str, float] = {}
        self._stages: dict[str, tuple[str, float]] = {}
        self._steps: dict[str, int] = {}

    def claimed(self, job_id: str) -> None:
        self._claimed[job_id] = time.monotonic()
        self._publish_held()

    def saw(self, event: Event) -> None:
        if event.kind == "stage":
            self._leave_stage(event.job_id)
            self._stages[event.job_id] = (event.data["stage"], time.monotonic())
        elif event.kind == "progress":
            # A resumed job begins with the steps of its checkpoint: the first one seen counts for one.
            step = event.data["step"]
            before = self._steps.get(event.job_id, max(step - 1, 0))
            self._steps[event.job_id] = step
            if step > before:
                self.meter.count("videoserve_steps", step - before, kind=self._kind)

    def ended(self, job_id: str, outcome: str) -> None:
        """`outcome`: completed, failed, cancelled, lost or handed_back."""
        self._leave_stage(job_id)
        self._steps.pop(job_id, None)
        claimed = self._claimed.pop(job_id, None)
        if claimed is not None:
            self.meter.count("videoserve_jobs", kind=self._kind, outcome=outcome)
            self.meter.observe("videoserve_job_seconds", time.monotonic() - claimed, kind=self._kind)
        self._publish_held()

    def _leave_stage(self, job_id: str) -> None:
        stage, since = self._stages.pop(job_id, ("", 0.0))
        if stage:
            self.meter.observe("videoserve_stage_seconds", time.monotonic() - since, kind=self._kind, stage=stage)

    def _publish_held(self) -> None:
        self.meter.set("videoserve_jobs_in_engine", len(self._claimed), kind=self._kind)
