"""Jobs that share a forward get what they get alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from videoserve.types import Event
from videoserve.video import warmup
from videoserve.video.denoise import finished
from videoserve.video.engine import VideoEngine
from videoserve.video.warmup import best_batch, default_plan, started

RunAll = Callable[[VideoEngine], list[Event]]
LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
LONG = "the camera pans slowly to the left over a wide valley"


def latents_of(engine: VideoEngine, *jobs: Any) -> list[torch.Tensor]:
    """The latents of jobs that run at the same time, in their order; cancels them."""
    for job in jobs:
        engine.admit(job, None)
    runs = list(engine._schedule)
    while any(run.stage in ("encode", "denoise") for run in runs):
        assert engine.step(lambda event: None)
    found = [finished(run) for run in runs]
    for job in jobs:
        engine.cancel(job.id)
    return found


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_together_equals_alone(studio: Callable[..., Any], layout: str, guidance: float) -> None:
    place = studio(layout)
    request: dict[str, Any] = {"num_inference_steps": 4, "num_frames": 9, "guidance_scale": guidance}
    jobs = [
        place.job("a", seed=1, **request),
        place.job("b", seed=2, created_at=1.0, prompt=LONG, image=place.picture(4), **request),
        place.job("c", seed=3, created_at=2.0, prompt="", **request),
    ]
    alone = [latents_of(place.shared(), job)[0] for job in jobs]
    together = latents_of(place.shared(batch=3), *jobs)
    for mine, solo in zip(together, alone, strict=True):
        assert (mine - solo).abs().max() < 1e-4
    assert (alone[0] - alone[1]).abs().max() > 0.1


def test_the_receipt_tells_the_company(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared(batch=2)
    first = tiny_studio.job("a", num_inference_steps=5)
    late = tiny_studio.job("b", num_inference_steps=5, created_at=1.0, seed=8)
    engine.admit(first, None)
    events: list[Event] = []
    for _ in range(3):
        engine.step(events.append)
    appetite = engine.wants()
    assert appetite is not None
    assert appetite.batch_key == late.plan["batch_key"]
    engine.admit(late, None)
    events += run_all(engine)
    receipts = {event.job_id: event.data["receipt"] for event in events if event.kind == "done"}
    assert receipts["a"]["batch"] == [1, 1, 2, 2, 2]
    assert receipts["b"]["batch"] == [2, 2, 2, 1, 1]


def test_other_shapes_do_not_share(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared(batch=4)
    engine.admit(tiny_studio.job("a"), None)
    engine.admit(tiny_studio.job("b", num_frames=9), None)
    engine.admit(tiny_studio.job("c", guidance_scale=1.0), None)
    receipts = [event.data["receipt"] for event in run_all(engine) if event.kind == "done"]
    assert len(receipts) == 3
    assert all(receipt["batch"] == [1, 1, 1] for receipt in receipts)


def test_memory_for_one_but_not_for_two(tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_studio.shared(batch=2)
    jobs = [tiny_studio.job("a"), tiny_studio.job("b", created_at=1.0, seed=8)]
    alone = [tiny_studio.solo(job) for job in jobs]
    expert = engine.components.experts[0]
    forward = expert.forward

    def small(latents: torch.Tensor, *rest: Any) -> torch.Tensor:
        if len(latents) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(latents, *rest)

    monkeypatch.setattr(expert, "forward", small)
    for job in jobs:
        engine.admit(job, None)
    events = run_all(engine)
    assert [tiny_studio.result(events, job.id) for job in jobs] == alone


@pytest.mark.parametrize(
    ("seconds_per_job", "best"), [({2: 0.9, 4: 0.9}, 2), ({2: 0.97}, 1), ({2: 0.8, 4: 0.7, 8: 0.6}, 8), ({2: None}, 1)]
)
def test_warm_up_shares_as_long_as_it_pays(
    tiny_studio: Any, monkeypatch: pytest.MonkeyPatch, seconds_per_job: dict[int, float | None], best: int
) -> None:
    components = tiny_studio.shared().components
    plan = default_plan(tiny_studio.card)
    monkeypatch.setattr(warmup, "fastest", lambda *args: 1.0)
    monkeypatch.setattr(warmup, "seconds_in_company", lambda _, company, alone: seconds_per_job[len(company)])
    assert best_batch(components, [started(components, plan), started(components, plan)]) == best


def test_warm_up_does_not_share_when_a_bit_changes(tiny_studio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    components = tiny_studio.shared().components
    plan = default_plan(tiny_studio.card)
    runs = [started(components, plan), started(components, plan)]
    monkeypatch.setattr(warmup, "fastest", lambda *args: 1.0)
    alone = [warmup.velocities(components, [run])[0] for run in runs]
    assert warmup.seconds_in_company(components, runs, alone) == 0.5
    alone[1] = alone[1] + 1e-6
    assert warmup.seconds_in_company(components, runs, alone) is None


@pytest.mark.slow
def test_the_demo_model_gives_the_same_bits_in_company(demo_studio: Any) -> None:
    engine = demo_studio.engine(batch=2)
    request: dict[str, Any] = {"num_inference_steps": 2, "width": 128, "height": 128}
    jobs = [demo_studio.job("a", **request), demo_studio.job("b", seed=8, created_at=1.0, prompt=LONG, **request)]
    alone = [latents_of(engine, job)[0] for job in jobs]
    for mine, solo in zip(latents_of(engine, *jobs), alone, strict=True):
        assert torch.equal(mine, solo)
