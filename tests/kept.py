"""Engines over a cache of what is kept between requests, and what their receipts say of it."""

from collections.abc import Callable
from typing import Any

from videoserve.types import Event
from videoserve.video.engine import VideoEngine
from videoserve_cache.tiers import SharedCache

RunAll = Callable[[VideoEngine], list[Event]]
Open = Callable[..., SharedCache]
STEPS = 4
REQUEST: dict[str, Any] = {"num_inference_steps": STEPS, "num_frames": 9, "guidance_scale": 2.5}
LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]


def engine_of(place: Any, cache: SharedCache | None, **settings: Any) -> VideoEngine:
    chosen = {"batch": 1, "device": "cpu", "checkpoint_steps": 0, "preview_steps": 0, **settings}
    engine = VideoEngine(place.settings(**chosen), place.files, place.directory, cache)
    engine.load(warm=False)
    return engine


def made(place: Any, engine: VideoEngine, run_all: RunAll, job: Any) -> tuple[str, dict[str, Any]]:
    """The digest of a job's mp4, and its receipt."""
    engine.admit(job, None)
    events = run_all(engine)
    return place.result(events, job.id), events[-1].data["receipt"]


def hits(receipt: dict[str, Any]) -> list[str]:
    return [entry["kind"] for entry in receipt["reuse"]["entries"] if entry["hit"]]


def misses(receipt: dict[str, Any]) -> list[str]:
    return [entry["kind"] for entry in receipt["reuse"]["entries"] if not entry["hit"]]
