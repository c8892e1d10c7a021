"""Adapters on several ranks: all bind what the header names, and a job gets what it gets alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_adapters import Shop, use
from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.follower import follow

Told = dict[str, tuple[str, str]]


def told(events: list[Event]) -> Told:
    """How each job ended: the digest of its mp4, or its failure."""
    ends = {event.job_id: event for event in events if event.kind in ("done", "failed")}
    return {
        job_id: ("done", event.data["outputs"]["video"]["sha256"])
        if event.kind == "done"
        else ("failed", event.data["code"])
        for job_id, event in ends.items()
    }


def together(world: Any, own: Settings, directory: Path, batches: list[list[Job]]) -> list[Told] | None:
    """Each batch of jobs to its end, all by one engine."""
    if world.rank:
        follow(own, directory)
        return None
    engine = VideoEngine(own, FileStore(own.data / "files"), directory)
    engine.load(warm=False)
    found = []
    for jobs in batches:
        events: list[Event] = []
        for job in jobs:
            engine.admit(job, None)
        while engine.step(events.append):
            pass
        found.append(told(events))
    engine.close()
    return found


@pytest.mark.parametrize("parallel", ["cfg2", "u2"])
def test_interleaved_jobs_get_what_they_get_alone(
    ranks_of: Callable[[int], Any], tiny_studio: Any, tmp_path: Path, parallel: str
) -> None:
    shop = Shop(tiny_studio, tmp_path)
    one, other = shop.add(1), shop.add(2, rank=7, extras=True)
    sets = {"a": (use(one),), "none": (), "a+b": (use(other), use(one)), "half b": (use(other, 0.5),)}
    jobs = [
        tiny_studio.job(name, seed=3, loras=loras, num_frames=5, num_inference_steps=2) for name, loras in sets.items()
    ]
    gone = tiny_studio.job("gone", loras=(use("0" * 64),), num_frames=5, num_inference_steps=2)
    own = Settings(
        data=tiny_studio.data, device="cpu", ranks=2, parallel=parallel, batch=1, checkpoint_steps=0, preview_steps=0,
        collective_timeout_s=60.0, aging_s=1e-3,
    )  # fmt: skip
    batches = [[job] for job in jobs] + [[*jobs, gone]]
    *alone, mixed = ranks_of(2)(together, own, tiny_studio.directory, batches)[0]
    assert mixed.pop("gone") == ("failed", "adapter_unusable")
    assert mixed == {job_id: end for told in alone for job_id, end in told.items()}
    assert len(set(mixed.values())) == len(jobs)
    assert all(kind == "done" for kind, _ in mixed.values())
