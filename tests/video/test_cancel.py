"""A cancelled job is gone at once: nothing more is told, nothing of it is kept, and the next job is not touched."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from videoserve.types import Event
from videoserve.video.engine import VideoEngine

RunAll = Callable[[VideoEngine], list[Event]]
STEPS = 3
FIELDS: dict[str, Any] = {"num_inference_steps": STEPS, "num_frames": 9}
# One encode, the steps, nine frames decoded in two pieces; the write ends it.
UNITS = 1 + STEPS + 2


def live_tensors() -> int:
    """How many tensors there are in this process."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_cancel_at_every_point(studio: Callable[..., Any], run_all: RunAll, layout: str) -> None:
    place = studio(layout)
    engine = place.shared(preview_steps=1, checkpoint_steps=1)
    job, following = place.job("gone", **FIELDS), place.job("next", seed=9, **FIELDS)
    alone = place.solo(following)
    # What an engine keeps of a shape (rotary tables) is made by the first job that has it.
    engine.admit(following, None)
    run_all(engine)
    before = live_tensors()
    # Tables of the noise schedule that the solvers of all jobs read.
    solver = engine.components.solver
    shared = [id(value) for kept in (solver.first, *solver.started.values()) for value in vars(kept).values()]
    for units in range(UNITS + 1):
        events: list[Event] = []
        engine.admit(job, None)
        for _ in range(units):
            engine.step(events.append)
        (run,) = list(engine._schedule)
        watched = [weakref.ref(tensor) for tensor in run.tensors() if id(tensor) not in shared]
        assert units == 0 or len(watched) > 3
        del run
        told = len(events)
        engine.cancel("gone")
        assert engine.bytes_held() == 0
        assert [ref for ref in watched if ref() is not None] == []
        assert not engine.step(events.append)
        assert len(events) == told
    assert live_tensors() == before
    engine.admit(following, None)
    assert place.result(run_all(engine), "next") == alone


def test_cancelling_one_of_two_that_share(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared(batch=2)
    stays = tiny_studio.job("stays", seed=9)
    engine.admit(tiny_studio.job("gone"), None)
    engine.admit(stays, None)
    for _ in range(3):
        engine.step(lambda event: None)
    engine.cancel("gone")
    events = run_all(engine)
    assert {event.job_id for event in events} == {"stays"}
    assert tiny_studio.result(events, "stays") == tiny_studio.solo(stays)


def test_cancelling_a_job_that_is_not_here_touches_no_other(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job(), None)
    engine.step(lambda event: None)
    engine.cancel("nobody")
    assert tiny_studio.result(run_all(engine)) == tiny_studio.solo(tiny_studio.job())


def test_a_failure_keeps_nothing_either(tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job(), None)
    run_all(engine)
    before = live_tensors()
    expert = engine.components.experts[0]

    def refused(*args: Any) -> Any:
        torch.zeros(1000)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(expert, "forward", refused)
    engine.admit(tiny_studio.job(), None)
    assert run_all(engine)[-1].data["code"] == "out_of_memory"
    assert live_tensors() == before


def test_fifty_random_cancels_leave_memory_flat(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared(preview_steps=1, checkpoint_steps=1)
    chance = random.Random(0)
    # What the engine keeps from the first job on, such as the rotary table of a shape, is there before.
    engine.admit(tiny_studio.job("first", seed=0), None)
    run_all(engine)
    before = live_tensors()
    for index in range(50):
        engine.admit(tiny_studio.job(f"job-{index}", seed=index), None)
        for _ in range(chance.randrange(UNITS + 1)):
            engine.step(lambda event: None)
        engine.cancel(f"job-{index}")
        assert engine.bytes_held() == 0
    assert live_tensors() == before
    last = tiny_studio.job("last", seed=3)
    alone = tiny_studio.solo(last)
    engine.admit(last, None)
    assert tiny_studio.result(run_all(engine), "last") == alone
