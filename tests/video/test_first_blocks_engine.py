"""Whole jobs with the policy first_blocks: alone, in company, resumed, and by several ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.families.wan import WanTransformer
from videoserve.video.follower import Follower, follow
from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.history import History

RanksOf = Callable[[int], Any]
Drain = Callable[[VideoEngine], list[Event]]

SOME = {"policy": "first_blocks", "threshold": 0.3, "max_skips": 2}
STEPS = 10


def receipt_of(events: list[Event], job_id: str = "job") -> dict[str, Any]:
    last = [event for event in events if event.job_id == job_id][-1]
    assert last.kind == "done", last.data
    receipt: dict[str, Any] = last.data["receipt"]
    return receipt


def job(place: Any, job_id: str = "job", **request: Any) -> Job:
    made: Job = place.job(job_id, **{"num_inference_steps": STEPS, "cache": SOME, **request})
    return made


@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_a_threshold_of_0_and_one_never_reached_are_the_uncached_video(
    studio: Callable[..., Any], run_all: Drain, layout: str
) -> None:
    place = studio(layout)
    engine = place.shared()
    results = []
    for cache in (None, SOME | {"threshold": 0.0}, SOME | {"threshold": 1e-30}, SOME | {"first": 2}):
        engine.admit(job(place, cache=cache), None)
        events = run_all(engine)
        results.append(place.result(events))
        letters = receipt_of(events)["cache"]["steps"]
        # With all of the two blocks computed in any case, what is skipped is nothing.
        assert ("." in letters) == (cache is not None and "first" in cache)
    assert len(set(results)) == 1
    assert engine.bytes_held() == 0
    assert engine._policies.budget.held == 0


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_job_skips_and_its_receipt_says_so(studio: Callable[..., Any], run_all: Drain, guidance: float) -> None:
    place = studio("wan22-ti2v")
    engine = place.shared()
    engine.admit(job(place, guidance_scale=guidance), None)
    told = receipt_of(run_all(engine))["cache"]
    assert told["policy"] == "first_blocks"
    assert told["steps"].count(".") == told["steps_saved"] > 2
    assert told["uncond_steps"] == (told["steps"] if guidance > 1 else None)
    assert len([number for number in told["probe"] if number is not None]) == STEPS
    assert told["peak_bytes"] > 0
    assert engine._policies.budget.held == 0


def test_experts_hold_nothing_of_each_other(studio: Callable[..., Any], run_all: Drain) -> None:
    place = studio("wan22-a14b")
    engine = place.shared()
    engine.admit(job(place, cache=SOME | {"threshold": 9.0, "warmup": 1, "max_skips": 9}, num_inference_steps=12), None)
    told = receipt_of(run_all(engine))["cache"]
    first = told["why"].index("first", 1)
    assert told["steps"] == "R" + "." * (first - 1) + "R" + "." * (12 - first - 2) + "R"
    assert 1 < first < 10


def test_jobs_with_it_go_alone_and_interleave_without_a_trace(studio: Callable[..., Any], run_all: Drain) -> None:
    place = studio("wan22-ti2v")
    jobs = [job(place, "a"), job(place, "b", seed=8, cache=None), job(place, "c", seed=9, cache=SOME | {"order": 1})]
    alone = [place.solo(one) for one in jobs]
    engine = place.engine(batch=4)
    for one in jobs:
        engine.admit(one, None)
    order = ["c", "a", "b"] * 20
    events: list[Event] = []
    # Whoever is the most urgent is served: another one at every turn.
    for turn in order:
        for run in engine._schedule:
            run.rank = 0.0 if run.id == turn else 1.0
        engine.step(events.append)
    assert [place.result(events, one.id) for one in jobs] == alone
    assert receipt_of(events, "a")["batch"] == [1] * STEPS
    assert engine._policies.budget.held == 0
    engine.close()


@pytest.mark.parametrize("order", [0, 2])
def test_a_job_suspended_at_any_step_ends_as_if_it_had_not_been(
    studio: Callable[..., Any], run_all: Drain, order: int
) -> None:
    place = studio("wan22-a14b")
    asked = job(place, cache=SOME | {"order": order})
    engine = place.shared()
    engine.admit(asked, None)
    events = run_all(engine)
    whole, told = place.result(events), receipt_of(events)["cache"]
    assert "." in told["steps"]
    for stop in range(2, STEPS + 1):
        engine.admit(asked, None)
        for _ in range(stop):
            engine.step(lambda event: None)
        checkpoint = engine.suspend("job")
        assert engine._policies.budget.held == 0
        other = place.shared(preview_steps=0, batch=2)
        other.admit(asked, checkpoint)
        events = run_all(other)
        assert place.result(events) == whole
        again = receipt_of(events)
        assert again["resumed_from"] == [stop - 1]
        assert again["cache"]["steps"] == told["steps"]
        assert again["cache"]["probe"] == told["probe"]


@pytest.mark.parametrize("fails_at", [1, 2, 5, 7])
def test_a_failure_at_any_step_leaves_nothing_to_the_next_job(
    studio: Callable[..., Any], run_all: Drain, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = studio("wan22-ti2v")
    fresh = place.solo(job(place))
    engine = place.engine()
    project, calls = WanTransformer.project_out, []

    def broken(self: WanTransformer, *arguments: Any) -> Tensor:
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("no such patch")
        return project(self, *arguments)

    monkeypatch.setattr(WanTransformer, "project_out", broken)
    engine.admit(job(place, seed=99), None)
    assert run_all(engine)[-1].kind == "failed"
    assert engine._policies.budget.held == 0
    engine.admit(job(place), None)
    assert place.result(run_all(engine)) == fresh
    engine.close()


def test_without_room_every_step_is_computed_and_that_is_said(studio: Callable[..., Any], run_all: Drain) -> None:
    place = studio("wan22-ti2v")
    exact = place.solo(job(place, cache=None))
    engine = place.engine()
    engine._policies.budget.limit = 1000
    engine.admit(job(place), None)
    events = run_all(engine)
    assert place.result(events) == exact
    (sentence,) = [event.data["sentence"] for event in events if event.kind == "adjusted"]
    assert sentence.startswith("A step cache needs ")
    assert sentence.endswith("of the budget's 1000 bytes are taken. From step 1 on every step is computed.")


def settings(data: Path, ranks: int, parallel: str) -> Settings:
    fields = {"batch": 1, "checkpoint_steps": 0, "preview_steps": 0, "collective_timeout_s": 60.0}
    return Settings(data=data, device="cpu", ranks=ranks, parallel=parallel, **fields)


def on_ranks(world: Any, own: Settings, directory: Path, jobs: list[Job], stops: list[int]) -> Any:
    """Final latents and cache receipts of each job, undisturbed and suspended after steps; bytes left behind."""
    if world.rank:
        held: list[int] = []
        patch = pytest.MonkeyPatch()
        end = Follower._end

        def ended(self: Follower) -> None:
            held.append(self._budget.held)
            end(self)

        patch.setattr(Follower, "_end", ended)
        follow(own, directory)
        patch.undo()
        return held
    engine = VideoEngine(own, FileStore(own.data / "files"), directory)
    engine.load(warm=False)
    results = []
    for one in jobs:
        for stop in (None, *stops):
            engine.admit(one, None)
            if stop is not None:
                for _ in range(1 + stop):
                    engine.step(lambda event: None)
                engine.admit(one, engine.suspend(one.id))
            results.append(finished(engine))
    engine.close()
    return results


def finished(engine: VideoEngine) -> Any:
    """The final latents and the cache's receipt of the only job, or how it failed."""
    events: list[Event] = []
    latents: list[Tensor] = []
    while engine.step(events.append):
        latents += [run.latents.clone() for run in engine._schedule if run.stage == "write" and run.latents is not None]
    if events[-1].kind == "failed":
        return events[-1].data
    return latents[-1], events[-1].data["receipt"]["cache"]


@pytest.mark.parametrize(
    ("ranks", "layout", "parallel"),
    [
        (2, "wan22-a14b", "cfg2"),
        (2, "wan21-i2v", "u2"),
        (3, "wan22-ti2v", "r3"),
        pytest.param(8, "wan22-ti2v", "cfg2-u2-r2", marks=pytest.mark.slow),
    ],
)
def test_ranks_decide_as_one_does_and_a_resumed_job_is_the_same_to_the_bit(
    ranks_of: RanksOf, studio: Callable[..., Any], ranks: int, layout: str, parallel: str
) -> None:
    place = studio(layout)
    jobs = [job(place), job(place, guidance_scale=1.0)] if ranks < 8 else [job(place)]
    own, stops = settings(place.data, ranks, parallel), [3, 7]
    many, *others = ranks_of(ranks)(on_ranks, own, place.directory, jobs, stops)
    assert others == [[0]] * (ranks - 1)
    engine = place.shared()
    for index, one in enumerate(jobs):
        engine.admit(one, None)
        truth, told = finished(engine)
        assert "." in told["steps"]
        whole, *parts = many[3 * index : 3 * index + 3]
        assert whole[1]["steps"] == told["steps"]
        assert float((whole[0] - truth).norm() / truth.norm()) < 1e-4
        for latents, again in parts:
            assert torch.equal(latents, whole[0])
            assert again["steps"] == told["steps"]


def in_trouble(world: Any, own: Settings, directory: Path, trouble: str, at: int, jobs: list[Job]) -> Any:
    """Something is wrong on rank 1 at the forward `at` of the first job; how the jobs end, and bytes left behind."""
    if not world.rank:
        return on_ranks(world, own, directory, jobs, [])
    patch, calls = pytest.MonkeyPatch(), []

    def counted(of: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append(1)
            return (wrong if len(calls) == at else of)(*arguments)

        return call

    def refused(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def opposite(policy: FirstBlocks, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        return Decision.RUN if decide(policy, ctx, history, scalar) is Decision.SKIP else Decision.SKIP

    decide = FirstBlocks.decide
    if trouble == "memory":
        patch.setattr(WanTransformer, "embed_patches", counted(WanTransformer.embed_patches, refused))
    else:
        patch.setattr(FirstBlocks, "decide", counted(decide, opposite))
    try:
        return on_ranks(world, own, directory, jobs, [])
    finally:
        patch.undo()


@pytest.mark.parametrize(("trouble", "code"), [("memory", "out_of_memory"), ("another mind", "internal_error")])
def test_trouble_on_one_rank_fails_the_job_on_all_and_leaves_nothing(
    ranks_of: RanksOf, studio: Callable[..., Any], trouble: str, code: str
) -> None:
    place = studio("wan22-ti2v")
    jobs = [job(place, seed=99), job(place)]
    own = settings(place.data, 2, "cfg2").model_copy(update={"collective_timeout_s": 3.0})
    (failed, (latents, told)), held = ranks_of(2)(in_trouble, own, place.directory, trouble, 6, jobs)
    assert failed["code"] == code
    assert held == [0]
    engine = place.shared()
    engine.admit(jobs[1], None)
    truth, alone = finished(engine)
    assert told["steps"] == alone["steps"]
    assert float((latents - truth).norm() / truth.norm()) < 1e-4
