"""Whole generations by several ranks: rank 0 has an engine and the others follow it, come what may."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.families.wan import WanTransformer
from videoserve.video.follower import follow
from videoserve.video.ranks import Plans
from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.comm.plan import ParallelPlan

RanksOf = Callable[[int], Any]
Result = tuple[dict[str, tuple[Tensor, Any]], list[dict[str, Any]]]

LIMIT_S = 3.0
STEP_TOLERANCE = 1e-4


def settings(data: Path, ranks: int, parallel: str = "auto", **chosen: Any) -> Settings:
    fields = {"batch": 1, "checkpoint_steps": 0, "preview_steps": 0, "collective_timeout_s": 60.0, **chosen}
    return Settings(data=data, device="cpu", ranks=ranks, parallel=parallel, **fields)


def opened(own: Settings, directory: Path) -> VideoEngine:
    engine = VideoEngine(own, FileStore(own.data / "files"), directory)
    engine.load(warm=False)
    return engine


def drained(engine: VideoEngine, jobs: list[Job]) -> Result:
    """Latents and frames of each job before they are written, and what was told."""
    for job in jobs:
        engine.admit(job, None)
    events: list[Event] = []
    results: dict[str, tuple[Tensor, Any]] = {}
    while engine.step(events.append):
        for run in engine._schedule:
            if run.stage == "write":
                assert run.latents is not None
                results[run.id] = run.latents.clone(), run.frames
    return results, [event.to_dict() for event in events]


def together(world: Any, own: Settings, directory: Path, jobs: list[Job]) -> Result | None:
    if world.rank:
        follow(own, directory)
        return None
    engine = opened(own, directory)
    results = drained(engine, jobs)
    engine.close()
    return results


def alone(own: Settings, directory: Path, jobs: list[Job]) -> Result:
    engine = opened(own.model_copy(update={"ranks": 1, "parallel": "auto"}), directory)
    results = drained(engine, jobs)
    engine.close()
    return results


def compare(many: Result | None, one: Result, jobs: list[Job]) -> None:
    """Latents within rounding after some steps; pixels within a level."""
    assert many is not None
    assert many[0].keys() == one[0].keys() == {job.id for job in jobs}, many[1]
    for job in jobs:
        (latents, frames), (truth, pictures) = many[0][job.id], one[0][job.id]
        assert float((latents - truth).norm() / truth.norm()) <= STEP_TOLERANCE
        assert np.abs(frames.astype(int) - pictures).max() <= 1


@pytest.mark.parametrize(
    ("layout", "parallel"),
    [("wan22-ti2v", "cfg2"), ("wan22-a14b", "u2-g2"), ("wan21-i2v", "cfg2-u2"), ("wan22-ti2v", "u2-r2")],
)
def test_a_generation_equals_that_of_one_rank(
    ranks_of: RanksOf, studio: Callable[..., Any], layout: str, parallel: str
) -> None:
    place = studio(layout)
    ranks = 4 if "-" in parallel and "g" not in parallel.partition("-")[2] else 2
    # Two that share forwards, one without guidance, one of another shape.
    jobs = [
        place.job("a", num_frames=9),
        place.job("b", num_frames=9, seed=8, prompt="another text, rather longer", created_at=1.0),
        place.job("c", guidance_scale=1.0, created_at=2.0),
        place.job("d", width=64, created_at=3.0),
    ]
    own = settings(place.data, ranks, parallel, batch=2)
    many = ranks_of(ranks)(together, own, place.directory, jobs)[0]
    compare(many, alone(own, place.directory, jobs), jobs)
    receipts = {event["job_id"]: event["data"]["receipt"] for event in many[1] if event["kind"] == "done"}
    assert receipts["a"]["batch"] == [2, 2, 2]
    plans = Plans.of(ParallelPlan.parse(parallel))
    assert [receipts[job]["parallel"] for job in "ac"] == [plans.guided.name, plans.plain.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "parallel", "steps"), [(2, "cfg2", 20), (3, "u3-g2", 2), (4, "cfg2-u2", 3), (8, "u8", 1)]
)
def test_the_demo_model_end_to_end(ranks_of: RanksOf, demo_studio: Any, ranks: int, parallel: str, steps: int) -> None:
    jobs = [demo_studio.job("demo", num_inference_steps=steps, width=128, height=128)]
    own = settings(demo_studio.data, ranks, parallel)
    many = ranks_of(ranks)(together, own, demo_studio.directory, jobs)[0]
    compare(many, alone(own, demo_studio.directory, jobs), jobs)


def cancelled(world: Any, own: Settings, directory: Path, gone: Job, stays: Job) -> Any:
    """Leaves a job after each number of units; then the other is made. What rank 0 told, and what it had to tell."""
    if world.rank:
        follow(own, directory)
        return None
    engine = opened(own, directory)
    for units in range(1, 6):
        engine.admit(gone, None)
        for _ in range(units):
            engine.step(lambda event: None)
        checkpoint = engine.suspend("gone") if units == 3 else None
        engine.cancel("gone")
        assert not engine.step(lambda event: None)
    engine.admit(gone, checkpoint)
    results = drained(engine, [stays])
    engine.close()
    return results


def test_cancel_and_preemption_reach_the_others(ranks_of: RanksOf, tiny_studio: Any) -> None:
    gone, stays = tiny_studio.job("gone", num_frames=9), tiny_studio.job("stays", seed=9, created_at=-1.0)
    own = settings(tiny_studio.data, 2)
    many = ranks_of(2)(cancelled, own, tiny_studio.directory, gone, stays)[0]
    compare(many, alone(own, tiny_studio.directory, [gone, stays]), [gone, stays])


class Broken(WanTransformer):
    """A transformer whose forward fails at one call, before or after its ranks have met."""

    calls = 0

    def forward(self, *arguments: Any) -> Tensor:
        Broken.calls += 1
        if Broken.calls == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(*arguments)


def out_of_memory(world: Any, own: Settings, directory: Path, at: list[int], jobs: list[Job]) -> Any:
    """The second forward fails on the ranks `at`; results and seconds of the jobs."""
    patch = pytest.MonkeyPatch()
    if world.rank in at:
        Broken.calls = 0
        patch.setattr("videoserve.video.load.WanTransformer", Broken)
    began = time.monotonic()
    try:
        result = together(world, own, directory, jobs)
    finally:
        patch.undo()
    return result, time.monotonic() - began


@pytest.mark.parametrize("at", [[0], [1], [0, 1]], ids=str)
def test_out_of_memory_on_a_rank_fails_the_job_and_spares_the_next(
    ranks_of: RanksOf, tiny_studio: Any, at: list[int]
) -> None:
    jobs = [tiny_studio.job("big"), tiny_studio.job("next", seed=9, created_at=1.0)]
    own = settings(tiny_studio.data, 2, "u2", collective_timeout_s=LIMIT_S)
    (results, events), _ = ranks_of(2)(out_of_memory, own, tiny_studio.directory, at, jobs)[0]
    failed = [event for event in events if event["kind"] == "failed"]
    assert [(event["job_id"], event["data"]["code"]) for event in failed] == [("big", "out_of_memory")]
    compare((results, events), alone(own, tiny_studio.directory, jobs[1:]), jobs[1:])


def lost(world: Any, own: Settings, directory: Path, job: Job, number: int) -> Any:
    """Rank 1 gets a signal in the middle of a forward; what rank 0 raises, and after how many seconds."""
    if world.rank:
        patch = pytest.MonkeyPatch()
        patch.setattr(WanTransformer, "project_out", lambda *arguments: os.kill(os.getpid(), number))
        follow(own, directory)
        return None
    engine = opened(own, directory)
    engine.admit(job, None)
    engine.step(lambda event: None)
    began = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        engine.step(lambda event: None)
    return str(caught.value), time.monotonic() - began


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_breaks_the_engine_and_fails_no_job(fresh_ranks: RanksOf, tiny_studio: Any, number: int) -> None:
    ranks = fresh_ranks(2)
    # Death shows at once, without the time limit; standing still at the time limit, and once more to ask the others.
    limit_s = 90.0 if number == signal.SIGKILL else LIMIT_S
    own = settings(tiny_studio.data, 2, "u2", collective_timeout_s=limit_s)
    ranks.start(lost, own, tiny_studio.directory, tiny_studio.job(), number)
    message, seconds = ranks.answers([0])[0]
    assert message
    assert seconds < 60.0
