"""The Video object that clients read, made of a job and its state."""

from typing import Any, Final

from videoserve.broker.state import JobState
from videoserve.types import Job

POLL_MS: Final = (250, 5000)
POLL_UNKNOWN_MS: Final = 1000
# How many polls the estimated rest of a job is worth.
POLLS: Final = 10


def video_object(job: Job, state: JobState, *, work_s: float | None) -> dict[str, Any]:
    """Ready for JSON. `work_s` is the estimated work of this job."""
    return constant_part(job) | changing_part(job, state, work_s=work_s)


def constant_part(job: Job) -> dict[str, Any]:
    """What never changes about a video."""
    plan = job.plan
    return {
        "id": job.id,
        "object": "video",
        "model": plan["model"],
        "prompt": job.request["prompt"],
        "size": f"{plan['width']}x{plan['height']}",
        "seconds": f"{plan['num_frames'] / plan['fps']:g}",
        "created_at": int(job.created_at),
        "remixed_from_video_id": job.remixed_from,
        "fps": plan["fps"],
        "num_frames": plan["num_frames"],
        "width": plan["width"],
        "height": plan["height"],
        "seed": plan["seed"],
        "metadata": job.metadata,
        "user": job.request.get("user"),
        "siblings": list(job.siblings),
    }


def changing_part(job: Job, state: JobState, *, work_s: float | None) -> dict[str, Any]:
    """What a client polls for."""
    return {
        "status": state.status,
        "progress": state.progress,
        "stage": state.stage,
        "eta_s": eta_s(state, work_s=work_s),
        "queue_position": state.queue_position,
        "completed_at": _whole(state.completed_at),
        "expires_at": _whole(state.expires_at),
        "error": state.error,
        "adjustments": [*job.plan["adjustments"], *state.adjustments],
        "receipt": state.receipt,
    }


def eta_s(state: JobState, *, work_s: float | None) -> float | None:
    """Seconds to the end: what the worker says of a running job; of a queued one the wait for its turn and its work."""
    if state.status == "in_progress":
        return state.eta_s
    if state.status != "queued" or state.wait_s is None or work_s is None:
        return None
    return round(state.wait_s + work_s, 1)


def poll_after_ms(video: dict[str, Any]) -> int | None:
    """When to ask again, for the header openai-poll-after-ms; None once there is nothing to wait for.

    The official client keeps to the first value it is given, so a long estimate must not become a long silence.
    """
    if video["status"] not in ("queued", "in_progress"):
        return None
    rest_s: float | None = video["eta_s"]
    if rest_s is None:
        return POLL_UNKNOWN_MS
    low, high = POLL_MS
    return round(min(max(1000 * rest_s / POLLS, low), high))


def poll_headers(video: dict[str, Any]) -> dict[str, str]:
    after = poll_after_ms(video)
    return {} if after is None else {"openai-poll-after-ms": str(after)}


def _whole(moment: float | None) -> int | None:
    return None if moment is None else int(moment)
