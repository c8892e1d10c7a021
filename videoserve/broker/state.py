"""What changes about a job, as one frozen reading of its hash."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from videoserve.types import Job, JsonRecord, Output, Stage, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState(JsonRecord):
    """A job at one moment.

    progress        0 to 100, as the worker last recorded it
    attempt         leases given so far; a drained one is not counted
    error           {code, message} of a failed job
    reasons         why earlier attempts ended: {attempt, worker, sentence, at}
    fence           token of the lease in force, 0 without one
    checkpoint      {sha256, stage, step} to go on from
    adjustments     sentences the engine added; those of the plan are in the plan
    started_at      begin of the latest attempt, unix seconds
    queue_position  1 for the next to run; None unless queued
    wait_s          estimated seconds until its turn; None unless queued, and where something ahead was never measured
    cancelling      a running job was asked to stop and has not stopped yet
    seq             number of the latest event, 0 before the first
    webhook         {delivered, attempts, error} once a delivery succeeded or was given up
    """

    status: Status
    stage: Stage = "queued"
    progress: int = 0
    attempt: int = 0
    error: dict[str, str] | None = None
    reasons: tuple[dict[str, Any], ...] = ()
    fence: int = 0
    worker: str | None = None
    checkpoint: dict[str, Any] | None = None
    outputs: dict[str, Output] = field(default_factory=dict)
    receipt: dict[str, Any] | None = None
    adjustments: tuple[str, ...] = ()
    eta_s: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    expires_at: float | None = None
    queue_position: int | None = None
    wait_s: float | None = None
    cancelling: bool = False
    seq: int = 0
    webhook: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job leased to a worker. `fence` goes with every later call about it; `attempt` counts from 1."""

    job: Job
    fence: int
    attempt: int
    checkpoint: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job is completed with; `adjustments` are sentences beside those of its plan."""

    outputs: Mapping[str, Output]
    receipt: dict[str, Any]
    adjustments: tuple[str, ...] = ()

    def told(self) -> dict[str, Any]:
        """As the transitions take it."""
        outputs = {variant: output.to_dict() for variant, output in self.outputs.items()}
        told: dict[str, Any] = {
            "outputs": json.dumps(outputs),
            "shas": sorted({output.sha256 for output in self.outputs.values()}),
            "receipt": json.dumps(self.receipt),
            "done": json.dumps({"outputs": outputs, "receipt": self.receipt}),
        }
        return told | ({"adjustments": json.dumps(self.adjustments)} if self.adjustments else {})


# The hash fields a reading consists of, in the order `read_job` expects them.
FIELDS: Final = (
    "job",
    "status",
    "stage",
    "progress",
    "attempt",
    "error",
    "reasons",
    "fence",
    "worker",
    "checkpoint",
    "outputs",
    "receipt",
    "adjustments",
    "eta_s",
    "started_at",
    "completed_at",
    "expires_at",
    "cancel",
    "seq",
    "webhook",
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a job waits: its place in the queue, from 1, and the estimated seconds until its turn."""

    place: int
    wait_s: float | None

    @classmethod
    def read(cls, told: Any) -> "Turn | None":
        """What the transitions answer: [place from 0, seconds or false], false for a job that does not wait."""
        if not told:
            return None
        place, wait_s = told
        return cls(place + 1, None if wait_s is False else wait_s)


def read_job(values: Sequence[str | None], turn: Turn | None = None) -> tuple[Job, JobState]:
    """The job and its state from the values of FIELDS, and where it waits if it does."""
    row = dict(zip(FIELDS, values, strict=True))
    outputs = _json(row["outputs"]) or {}
    state = JobState(
        status=cast(Status, row["status"]),
        stage=cast(Stage, row["stage"]),
        progress=int(row["progress"] or 0),
        attempt=int(row["attempt"] or 0),
        error=_json(row["error"]),
        reasons=tuple(_json(row["reasons"]) or ()),
        fence=int(row["fence"] or 0),
        worker=row["worker"] or None,
        checkpoint=_json(row["checkpoint"]),
        outputs={variant: Output(**output) for variant, output in outputs.items()},
        receipt=_json(row["receipt"]),
        adjustments=tuple(_json(row["adjustments"]) or ()),
        eta_s=_seconds(row["eta_s"]),
        started_at=_seconds(row["started_at"]),
        completed_at=_seconds(row["completed_at"]),
        expires_at=_seconds(row["expires_at"]),
        queue_position=turn.place if turn else None,
        wait_s=turn.wait_s if turn else None,
        cancelling=row["cancel"] == "1" and row["status"] == "in_progress",
        seq=int(row["seq"] or 0),
        webhook=_json(row["webhook"]),
    )
    return Job.from_dict(json.loads(cast(str, row["job"]))), state


def _json(text: str | None) -> Any:
    return json.loads(text) if text else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text else None
