"""What holds of step caches on real jobs, with whatever policy: tiny models of all layouts, one rank and several."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from tests.tiny import LAYOUTS
from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.families.wan import WanTransformer
from videoserve.video.follower import follow

RanksOf = Callable[[int], Any]
Drain = Callable[[VideoEngine], list[Event]]

STEPS = 9
MASK = {"policy": "mask", "steps": "RR.R..R.R"}
POLICIES: dict[str, dict[str, Any]] = {
    "mask": MASK,
    "replay": MASK | {"order": 2, "replay": True},
    "latent": {"policy": "latent", "threshold": 0.3},
    "first_blocks": {"policy": "first_blocks", "threshold": 0.3},
}


def job(place: Any, cache: dict[str, Any] | None, job_id: str = "job", **request: Any) -> Job:
    made: Job = place.job(job_id, **{"num_inference_steps": STEPS, "cache": cache, **request})
    return made


def done(engine: VideoEngine, run_all: Drain, asked: Job, place: Any) -> tuple[str, dict[str, Any]]:
    """The digest of the mp4, and the cache's receipt."""
    engine.admit(asked, None)
    events = run_all(engine)
    result: str = place.result(events, asked.id)
    assert engine.bytes_held() == 0
    assert engine._policies.budget.held == 0
    return result, events[-1].data["receipt"]["cache"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_skips_nothing_is_the_uncached_video(studio: Callable[..., Any], run_all: Drain, layout: str) -> None:
    place = studio(layout)
    exact: list[dict[str, Any] | None] = [
        None,
        {"quality": "exact"},
        {"policy": "off"},
        {"policy": "latent", "threshold": 0.0},
        {"policy": "latent", "threshold": 1e-30},
        {"policy": "mask", "steps": "R" * STEPS, "order": 2, "replay": True},
    ]
    found = [done(place.shared(), run_all, job(place, cache), place) for cache in exact]
    assert len({result for result, _ in found}) == 1
    assert {told["steps"] for _, told in found} == {"R" * STEPS}
    # Only the one that may skip measures, and keeps.
    probed = [any(number is not None for number in told.get("probe", [])) for _, told in found]
    assert probed == [False] * 4 + [True, False]
    assert [told.get("peak_bytes", 0) > 0 for _, told in found] == probed


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_plan_is_what_is_executed_and_guards_are_in_it(
    studio: Callable[..., Any], run_all: Drain, layout: str, guidance: float
) -> None:
    place = studio(layout)
    eager = {"policy": "mask", "steps": "RR" + "." * (STEPS - 2), "warmup": 2, "max_skips": 2}
    _, told = done(place.shared(), run_all, job(place, eager, guidance_scale=guidance), place)
    letters = told["steps"]
    assert letters == told["planned"]
    assert letters[:2] + letters[-1] == "RRR"
    assert "..." not in letters
    experts = [index for index, why in enumerate(told["why"]) if why == "first"]
    assert len(experts) == (2 if layout == "wan22-a14b" else 1)
    for first in experts:
        assert letters[first : first + 2].replace("R", "") == ""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_gone_at_any_step_leaves_nothing_to_the_next(
    studio: Callable[..., Any], run_all: Drain, policy: str
) -> None:
    place = studio("wan22-ti2v")
    cache = POLICIES[policy]
    fresh, told = done(place.engine(), run_all, job(place, cache), place)
    assert "." in told["steps"]
    engine = place.shared()
    for units in range(1, STEPS + 2):
        engine.admit(job(place, cache, seed=99), None)
        for _ in range(units):
            engine.step(lambda event: None)
        engine.cancel("job")
        assert engine.bytes_held() == engine._policies.budget.held == 0
        if units % 3 == 0:
            assert done(engine, run_all, job(place, cache), place)[0] == fresh


@pytest.mark.parametrize("batch", [1, 3])
def test_jobs_of_all_policies_at_once_are_what_they_are_alone(
    studio: Callable[..., Any], run_all: Drain, batch: int
) -> None:
    place = studio("wan22-a14b")
    jobs = [
        job(place, cache, name, seed=seed)
        for seed, (name, cache) in enumerate({**POLICIES, "none": None, "again": MASK}.items())
    ]
    alone = [done(place.shared(), run_all, one, place) for one in jobs]
    engine = place.engine(batch=batch)
    for one in jobs:
        engine.admit(one, None)
    draw, events = random.Random(batch), []
    told = events.append
    while engine.step(told):
        # Another one is the most urgent at every turn.
        for run in engine._schedule:
            run.rank = draw.random()
    receipts = {event.job_id: event.data["receipt"] for event in events if event.kind == "done"}
    for one, (result, cache) in zip(jobs, alone, strict=True):
        assert place.result(events, one.id) == result
        assert receipts[one.id]["cache"]["steps"] == cache["steps"]
    shared = max(max(receipt["batch"]) for receipt in receipts.values())
    assert shared > 1 if batch > 1 else shared == 1
    assert engine._policies.budget.held == 0
    engine.close()


@pytest.mark.parametrize("policy", ["replay", "latent"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_job_resumed_at_any_step_ends_as_if_it_had_not_been(
    studio: Callable[..., Any], run_all: Drain, layout: str, policy: str
) -> None:
    place = studio(layout)
    asked = job(place, POLICIES[policy])
    engine = place.shared()
    whole, told = done(engine, run_all, asked, place)
    for units in range(3, STEPS + 1, 2):
        engine.admit(asked, None)
        for _ in range(units):
            engine.step(lambda event: None)
        engine.admit(asked, engine.suspend("job"))
        events = run_all(engine)
        assert place.result(events) == whole
        assert events[-1].data["receipt"]["cache"]["steps"] == told["steps"]


def on_ranks(world: Any, own: Settings, directory: Path, jobs: list[Job]) -> Any:
    """Final latents and letters of each job on rank 0; how many forwards each of the others computed."""
    if not world.rank:
        engine = VideoEngine(own, FileStore(own.data / "files"), directory)
        engine.load(warm=False)
        results = [finished(engine, one) for one in jobs]
        engine.close()
        return results
    patch, forwards, project = pytest.MonkeyPatch(), [], WanTransformer.project_out

    def counted(self: WanTransformer, *arguments: Any) -> Tensor:
        forwards.append(1)
        return project(self, *arguments)

    patch.setattr(WanTransformer, "project_out", counted)
    try:
        follow(own, directory)
    finally:
        patch.undo()
    return len(forwards)


def finished(engine: VideoEngine, asked: Job) -> tuple[Tensor, str]:
    engine.admit(asked, None)
    events: list[Event] = []
    latents: list[Tensor] = []
    while engine.step(events.append):
        latents += [run.latents.clone() for run in engine._schedule if run.stage == "write" and run.latents is not None]
    return latents[-1], events[-1].data["receipt"]["cache"]["steps"]


@pytest.mark.parametrize(
    ("ranks", "layout", "parallel"),
    [(2, "wan22-a14b", "cfg2"), (3, "wan21-i2v", "u3"), pytest.param(8, "wan22-ti2v", "u8", marks=pytest.mark.slow)],
)
def test_ranks_take_the_same_decisions_and_a_skipped_step_wakes_none_of_them(
    ranks_of: RanksOf, studio: Callable[..., Any], ranks: int, layout: str, parallel: str
) -> None:
    place = studio(layout)
    jobs = [job(place, POLICIES[name], name) for name in ("mask", "latent", "replay")]
    settings = {"batch": 1, "checkpoint_steps": 0, "preview_steps": 0, "collective_timeout_s": 60.0}
    own = Settings(data=place.data, device="cpu", ranks=ranks, parallel=parallel, **settings)
    results, *forwards = ranks_of(ranks)(on_ranks, own, place.directory, jobs)
    assert forwards == [sum(letters.count("R") for _, letters in results)] * (ranks - 1)
    for one, (latents, letters) in zip(jobs, results, strict=True):
        truth, alone = finished(place.shared(), one)
        assert letters == alone
        assert "." in letters
        assert float((latents - truth).norm() / truth.norm()) < 1e-4


@pytest.mark.parametrize("policy", ["latent", "first_blocks"])
def test_a_verified_job_is_compared_with_the_uncached_one(
    studio: Callable[..., Any], run_all: Drain, policy: str
) -> None:
    place = studio("wan22-ti2v")
    plain, _ = done(place.shared(), run_all, job(place, POLICIES[policy]), place)
    verified, told = done(place.shared(), run_all, job(place, POLICIES[policy] | {"verify": True}), place)
    assert verified == plain
    assert 0 < told["fidelity"]["latents_relative_l2"] < 1
    assert told["fidelity"]["worst"]["psnr_db"] < told["fidelity"]["mean"]["psnr_db"] + 1e-9
