"""Jobs that fail, and those beside them that do not."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event
from videoserve.video import stages, steps
from videoserve.video.engine import VideoEngine

RunAll = Callable[[VideoEngine], list[Event]]


def of(events: list[Event], kind: str, job_id: str = "job") -> list[dict[str, Any]]:
    return [event.data for event in events if event.kind == kind and event.job_id == job_id]


def test_not_a_number_names_the_step_and_spares_the_others(
    tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_studio.shared()
    bad, good = tiny_studio.job("bad"), tiny_studio.job("good", created_at=1.0, seed=8)
    alone = tiny_studio.solo(good)
    expert = engine.components.experts[0]
    calls: list[int] = []
    forward = expert.forward

    def poisoned(*args: Any) -> Tensor:
        calls.append(1)
        rows = forward(*args)
        if len(calls) == 2:
            rows[0, 0, -1, 0, 0] = torch.nan
        return rows

    monkeypatch.setattr(expert, "forward", poisoned)
    engine.admit(bad, None)
    engine.admit(good, None)
    events = run_all(engine)
    assert of(events, "failed", "bad") == [
        {"code": "numerical_error", "message": "Step 2 of 3 gave numbers that are not finite.", "retry": False}
    ]
    assert tiny_studio.result(events, "good") == alone


@pytest.mark.parametrize("stage", ["text", "vae", "decode"])
def test_not_a_number_in_other_stages(
    tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    engine = tiny_studio.engine()
    components = engine.components
    parameter = {
        "text": components.text_encoder.shared.weight,
        "vae": components.vae.module.encoder.conv_in.bias,
        "decode": components.vae.module.decoder.conv_in.bias,
    }[stage]
    engine.admit(tiny_studio.job(), None)
    with torch.inference_mode():
        parameter.fill_(torch.nan)
    (failed,) = of(run_all(engine), "failed")
    assert failed["code"] == "numerical_error"
    assert {"text": "text encoder", "vae": "VAE", "decode": "decoder"}[stage] in failed["message"]
    assert not failed["retry"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: not enough memory"),
    ],
)
@pytest.mark.parametrize("where", ["encode_kept", "velocities", "decode"])
def test_out_of_memory_fails_one_job(
    tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch, error: Exception, where: str
) -> None:
    engine = tiny_studio.shared()
    good = tiny_studio.job("good", created_at=1.0, seed=8)
    alone = tiny_studio.solo(good)
    engine.admit(tiny_studio.job("big"), None)
    engine.admit(good, None)
    room = steps if where == "velocities" else stages
    original, calls = getattr(room, where), []

    def first_time_fails(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return original(*args)

    monkeypatch.setattr(room, where, first_time_fails)
    events = run_all(engine)
    (failed,) = of(events, "failed", "big")
    assert failed == {
        "code": "out_of_memory",
        "message": "5 frames of 48x32 need more memory than this machine has free; "
        "ask for a smaller size or fewer frames.",
        "retry": False,
    }
    assert tiny_studio.result(events, "good") == alone
    assert engine.bytes_held() == 0


def test_an_unforeseen_error_fails_one_job(tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_studio.shared()
    monkeypatch.setattr(stages, "decode", lambda *args: 1 // 0)
    engine.admit(tiny_studio.job(), None)
    (failed,) = of(run_all(engine), "failed")
    assert failed == {
        "code": "internal_error",
        "message": "The engine failed in stage decode: ZeroDivisionError.",
        "retry": True,
    }
    monkeypatch.undo()
    engine.admit(tiny_studio.job(), None)
    assert of(run_all(engine), "done")


def test_a_missing_picture_fails_the_job(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job()
    job.plan["image"] = "0" * 64
    engine = tiny_studio.shared()
    engine.admit(job, None)
    (failed,) = of(run_all(engine), "failed")
    assert failed["code"] == "image_missing"


@pytest.mark.parametrize("level", [0, 255, 128])
def test_a_plain_picture_gives_a_video(tiny_studio: Any, run_all: RunAll, level: int) -> None:
    engine = tiny_studio.shared()
    plain = tiny_studio.picture(np.full((32, 48, 3), level, np.uint8))
    engine.admit(tiny_studio.job(image=plain), None)
    assert of(run_all(engine), "done")


@pytest.mark.parametrize("plain", [False, True])
def test_a_plain_video_of_a_real_picture_fails(
    tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    engine = tiny_studio.shared()
    original = engine.components.vae.pieces

    def black(latents: Tensor, **options: Any) -> Iterator[Tensor]:
        for number, piece in enumerate(original(latents, **options)):
            # The first frame repeats the picture.
            kept = piece[:, :, : 1 if number == 0 else 0]
            yield torch.cat([kept, torch.full_like(piece[:, :, kept.shape[2] :], -1.0)], dim=2)

    monkeypatch.setattr(engine.components.vae, "pieces", black)
    image = tiny_studio.picture(np.zeros((32, 48, 3), np.uint8)) if plain else tiny_studio.picture()
    engine.admit(tiny_studio.job(image=image), None)
    events = run_all(engine)
    if plain:
        assert of(events, "done")
    else:
        (failed,) = of(events, "failed")
        assert failed["code"] == "numerical_error"
        assert "one plain colour" in failed["message"]


def test_a_deadline_ends_a_job_at_the_next_step(tiny_studio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_studio.shared()
    now = time.time()
    engine.admit(tiny_studio.job("late", deadline=now + 60), None)
    engine.admit(tiny_studio.job("patient", created_at=1.0), None)
    events: list[Event] = []
    for _ in range(3):
        engine.step(events.append)
    assert of(events, "progress", "late")[-1]["step"] == 2
    monkeypatch.setattr(time, "time", lambda: now + 61)
    while engine.step(events.append):
        pass
    (failed,) = of(events, "failed", "late")
    assert failed["code"] == "deadline_exceeded"
    assert "1.0 s ago" in failed["message"]
    assert of(events, "progress", "late")[-1]["step"] == 2
    assert of(events, "done", "patient")


def test_a_hopeless_deadline_is_not_begun(tiny_studio: Any) -> None:
    engine = tiny_studio.engine()
    for stage in ("encode", "step", "decode", "write"):
        for _ in range(50):
            engine._costs.record("48x32x5:g1", stage, 10.0)
    events: list[Event] = []
    engine.admit(tiny_studio.job(deadline=time.time() + 30), None)
    assert not engine.step(events.append)
    assert [event.kind for event in events] == ["failed"]
    assert events[0].data["code"] == "deadline_exceeded"
    assert "was not begun" in events[0].data["message"]


def test_an_engine_that_could_not_load_has_nothing_to_do(tmp_path: Path, demo_model_dir: Path) -> None:
    """Its thread still asks it for a step, which must not hide why it could not."""
    engine = VideoEngine(Settings(data=tmp_path, device="cuda:99"), FileStore(tmp_path / "files"), demo_model_dir)
    with pytest.raises(ValueError, match="cuda:99"):
        engine.load()
    assert not engine.step(lambda event: None)
