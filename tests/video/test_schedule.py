"""Who is served next, who may share a forward, and what further work is asked for."""

from collections.abc import Callable
from typing import Any

import pytest

from videoserve.types import Event, Job, VideoPlan, rank
from videoserve.video.engine import VideoEngine
from videoserve.video.run import Run
from videoserve.video.schedule import HELD, Schedule

AGING_S = 60.0


class Clocked:
    """Stands for a solver at a timestep."""

    train_timesteps = 1000

    def __init__(self, timestep: float) -> None:
        self.timestep = timestep


def run(
    name: str,
    *,
    created_at: float = 0.0,
    priority: int = 0,
    stage: str = "denoise",
    key: str = "a",
    timestep: float = 900.0,
    boundary: float | None = None,
) -> Run:
    plan = VideoPlan(
        model="m",
        prompt="",
        negative_prompt="",
        image="",
        last_image=None,
        resize_mode="crop",
        width=16,
        height=16,
        num_frames=1,
        fps=8,
        steps=4,
        guidance=1.0,
        guidance_2=None,
        boundary=boundary,
        flow_shift=None,
        seed=0,
        text_length=8,
        latent_shape=(1, 1, 2, 2),
        crf=18,
        batch_key=key,
    )
    job = Job(id=name, kind="video", tenant="", request={}, plan={}, created_at=created_at, priority=priority)
    made = Run(job=job, plan=plan, rank=rank(created_at, priority, AGING_S))
    made.stage = stage  # type: ignore[assignment]
    made.solver = Clocked(timestep)  # type: ignore[assignment]
    return made


def schedule(*runs: Run, limit: int = 1) -> Schedule:
    made = Schedule(lambda run: limit)
    for one in runs:
        made.add(one)
    return made


def names(runs: list[Run]) -> list[str]:
    return [one.id for one in runs]


def test_the_earliest_is_served() -> None:
    assert names(schedule(run("b", created_at=2.0), run("a", created_at=1.0)).pick()) == ["a"]


def test_priority_goes_first_until_age_outweighs_it() -> None:
    early, urgent = run("early"), run("urgent", created_at=59.0, priority=1)
    late = run("late", created_at=61.0, priority=1)
    assert names(schedule(early, urgent).pick()) == ["urgent"]
    assert names(schedule(early, late).pick()) == ["early"]


def test_company_is_of_the_same_shape_and_no_more_than_the_limit() -> None:
    runs = [run("a"), run("b", created_at=1.0, key="other"), run("c", created_at=3.0), run("d", created_at=2.0)]
    assert names(schedule(*runs, limit=1).pick()) == ["a"]
    assert names(schedule(*runs, limit=2).pick()) == ["a", "d"]
    assert names(schedule(*runs, limit=8).pick()) == ["a", "d", "c"]


def test_company_catches_up_before_it_shares() -> None:
    newcomer = run("b", created_at=1.0, stage="encode")
    both = schedule(run("a"), newcomer, limit=2)
    assert names(both.pick()) == ["b"]
    newcomer.stage = "denoise"
    assert names(both.pick()) == ["a", "b"]


def test_a_forward_is_for_one_expert() -> None:
    high = run("high", timestep=900.0, boundary=0.5)
    low = run("low", created_at=1.0, timestep=100.0, boundary=0.5)
    assert names(schedule(high, low, limit=2).pick()) == ["high"]


def test_who_must_be_alone_is_alone() -> None:
    shy = run("shy", created_at=1.0)
    shy.alone = True
    assert names(schedule(run("a"), shy, limit=2).pick()) == ["a"]
    assert names(schedule(shy, run("b", created_at=2.0), limit=2).pick()) == ["shy"]


def test_decoding_and_writing_are_done_alone() -> None:
    for stage in ("decode", "write"):
        assert names(schedule(run("a", stage=stage), run("b", created_at=1.0), limit=2).pick()) == ["a"]


def test_appetite() -> None:
    idle = schedule().appetite()
    assert idle is not None
    assert idle.idle
    alone = schedule(run("a", created_at=5.0)).appetite()
    assert alone is not None
    assert (alone.idle, alone.batch_key, alone.before) == (False, None, 5.0)
    hungry = schedule(run("a", created_at=5.0), limit=2).appetite()
    assert hungry is not None
    assert (hungry.batch_key, hungry.before) == ("a", 5.0)
    full = schedule(run("a"), run("b"), limit=2).appetite()
    assert full is not None
    assert full.batch_key is None
    decoding = schedule(run("a", stage="decode"), limit=2).appetite()
    assert decoding is not None
    assert decoding.batch_key is None
    many = [run(f"r{index}", key=str(index)) for index in range(HELD)]
    assert schedule(*many).appetite() is None
    assert schedule(*many, limit=2).appetite() is not None


def test_a_more_urgent_job_takes_over_at_the_next_step(
    tiny_studio: Any, run_all: Callable[[VideoEngine], list[Event]]
) -> None:
    engine = tiny_studio.shared()
    slow = tiny_studio.job("slow", num_inference_steps=6, created_at=0.0)
    urgent = tiny_studio.job("urgent", seed=9, created_at=10.0, priority=5)
    alone = tiny_studio.solo(slow), tiny_studio.solo(urgent)
    events: list[Event] = []
    engine.admit(slow, None)
    for _ in range(3):
        engine.step(events.append)
    appetite = engine.wants()
    assert appetite is not None
    assert appetite.before is not None
    assert rank(urgent.created_at, urgent.priority, AGING_S) < appetite.before
    engine.admit(urgent, None)
    began = len(events)
    events += run_all(engine)
    after = [event.job_id for event in events[began:]]
    assert after == sorted(after, reverse=True)
    assert (tiny_studio.result(events, "slow"), tiny_studio.result(events, "urgent")) == alone


def test_a_run_is_taken_in_once() -> None:
    with pytest.raises(ValueError, match="admitted already"):
        schedule(run("a"), run("a"))
