"""Jobs from admission to files, and the ways they can fail without taking others along."""

import base64
import io
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from videoserve.types import Event
from videoserve.video import denoise
from videoserve.video.engine import VideoEngine

RunAll = Callable[[VideoEngine], list[Event]]


def of(events: list[Event], kind: str, job_id: str = "job") -> list[dict[str, Any]]:
    return [event.data for event in events if event.kind == kind and event.job_id == job_id]


@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_a_job_becomes_files_and_a_receipt(studio: Callable[..., Any], run_all: RunAll, layout: str) -> None:
    place = studio(layout)
    engine = place.shared(preview_steps=2, checkpoint_steps=2)
    job = place.job(num_inference_steps=5, num_frames=9, fps=8, guidance_scale=2.5, negative_prompt="blurry")
    engine.admit(job, None)
    events = run_all(engine)
    assert [data["stage"] for data in of(events, "stage")] == ["encode", "denoise", "decode", "write"]
    assert [data["step"] for data in of(events, "preview")] == [2, 4]
    assert [(data["stage"], data["step"]) for data in of(events, "checkpoint")] == [
        ("denoise", 2),
        ("denoise", 4),
        ("decode", 5),
    ]
    (done,) = of(events, "done")
    assert events[-1].kind == "done"
    assert set(done["outputs"]) == {"video", "thumbnail", "spritesheet"}
    for output in done["outputs"].values():
        assert place.files.path(output["sha256"]).stat().st_size == output["bytes"]
    with av.open(str(place.files.path(done["outputs"]["video"]["sha256"]))) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert np.stack(frames).shape == (9, 32, 48, 3)
    receipt = done["receipt"]
    assert receipt["steps"] == "RRRRR"
    assert (receipt["batch"], receipt["parallel"]) == ([1] * 5, "one")
    assert receipt["parameters"]["flow_shift"] == 3.0
    assert receipt["parameters"]["seed"] == 7
    assert receipt["parameters"]["solver"] == "UniPCMultistepScheduler"
    assert receipt["image"] == {"sha256": job.plan["image"]}
    assert receipt["prompt"]["tokens"] == 9
    assert receipt["model"]["sha256"] == engine.components.digest
    assert receipt["peak_memory_bytes"] > 2**20
    assert set(receipt["stages"]) == {"encode", "denoise", "decode", "write"}
    assert receipt["total_s"] == pytest.approx(sum(receipt["stages"].values()), abs=1e-3)
    assert engine.bytes_held() == 0


def test_progress_counts_work_and_never_falls(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job(num_inference_steps=8), None)
    told = of(run_all(engine), "progress")
    numbers = [data["progress"] for data in told]
    assert numbers == sorted(numbers)
    assert numbers[0] < 100
    assert numbers.count(100) == 1
    assert [data["step"] for data in told] == [*range(9), 8, 8]
    assert all(data["steps"] == 8 and data["eta_s"] >= 0 for data in told)
    assert told[-1]["eta_s"] == 0


def test_previews_are_pictures(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared(preview_steps=1)
    engine.admit(tiny_studio.job(num_frames=9, num_inference_steps=2), None)
    for data in of(run_all(engine), "preview"):
        picture = Image.open(io.BytesIO(base64.b64decode(data["base64"])))
        assert picture.format == "JPEG"
        assert data["media_type"] == "image/jpeg"
        assert picture.height >= 128
        assert picture.width == 3 * picture.height * 48 // 32
        assert np.asarray(picture).std() > 5


def test_a_cut_prompt_is_told_once(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job(prompt="left and right " * 20)
    said = [sentence for sentence in job.plan["adjustments"] if "tokens" in sentence]
    assert said
    engine = tiny_studio.shared()
    engine.admit(job, None)
    assert of(run_all(engine), "adjusted") == []
    job.plan["adjustments"] = []
    engine.admit(job, None)
    events = run_all(engine)
    assert of(events, "adjusted") == [{"sentence": said[0]}]
    assert of(events, "done")[0]["receipt"]["adjustments"] == said


def test_jobs_leave_the_global_generator_alone(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared()
    before = torch.get_rng_state()
    engine.admit(tiny_studio.job(), None)
    run_all(engine)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_job_is_admitted_once(tiny_studio: Any) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job(), None)
    with pytest.raises(ValueError, match="admitted already"):
        engine.admit(tiny_studio.job(), None)


def test_two_experts_take_over_at_the_boundary(studio: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    place = studio("wan22-a14b")
    engine = place.shared()
    engine.admit(place.job(num_inference_steps=6, boundary_ratio=0.7), None)
    used: list[int] = []
    original = denoise.expert_of

    def noted(run: Any) -> int:
        used.append(original(run))
        return used[-1]

    monkeypatch.setattr(denoise, "expert_of", noted)
    events: list[Event] = []
    while engine.step(events.append):
        for run in engine._schedule:
            assert len(run.contexts) <= 1
    assert used == sorted(used)
    assert set(used) == {0, 1}
