"""The same seed gives the same latents as diffusers' own pipeline, in float32, within 1e-4."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image
from torch import Tensor

from videoserve.media.image import fit
from videoserve.types import Event, Job, VideoPlan
from videoserve.video.denoise import finished
from videoserve.video.engine import VideoEngine

LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
TOLERANCE = 1e-4


def theirs(studio: Any, job: Job) -> Tensor:
    """The latents of diffusers' pipeline for a job's plan."""
    plan = VideoPlan.from_dict(job.plan)
    pipeline = WanImageToVideoPipeline.from_pretrained(studio.directory, dtype=torch.float32)
    config = json.loads((studio.directory / "scheduler" / "scheduler_config.json").read_text())
    shift = {} if plan.flow_shift is None else {"shift" if "shift" in config else "flow_shift": plan.flow_shift}
    pipeline.scheduler = getattr(diffusers, config["_class_name"]).from_config(config, **shift)
    if plan.boundary is not None:
        pipeline.register_to_config(boundary_ratio=plan.boundary)
    pipeline.set_progress_bar_config(disable=True)
    latents: Tensor = pipeline(
        image=fitted(studio, plan, plan.image),
        last_image=None if plan.last_image is None else fitted(studio, plan, plan.last_image),
        prompt=plan.prompt,
        negative_prompt=plan.negative_prompt,
        width=plan.width,
        height=plan.height,
        num_frames=plan.num_frames,
        num_inference_steps=plan.steps,
        guidance_scale=plan.guidance,
        guidance_scale_2=plan.guidance_2,
        generator=torch.Generator("cpu").manual_seed(plan.seed),
        max_sequence_length=plan.text_length,
        output_type="latent",
    ).frames
    return latents


def fitted(studio: Any, plan: VideoPlan, sha: str) -> Image.Image:
    """A stored picture as a user of diffusers would hand it over: at the size of the video."""
    return Image.fromarray(fit(studio.image(sha), plan.width, plan.height, plan.resize_mode))


def ours(engine: VideoEngine, job: Job) -> Tensor:
    """The latents that the engine is about to decode."""
    events: list[Event] = []
    engine.admit(job, None)
    (run,) = list(engine._schedule)
    while run.stage != "decode":
        assert engine.step(events.append), events[-1]
    latents = finished(run)
    engine.cancel(job.id)
    return latents


def check(studio: Any, **request: Any) -> None:
    job = studio.job(**request)
    mine, reference = ours(studio.shared(), job), theirs(studio, job)
    assert mine.shape == reference.shape
    assert reference.std() > 0.1
    assert (mine - reference).abs().max() < TOLERANCE


@pytest.mark.parametrize("guidance", [1.0, 3.5])
@pytest.mark.parametrize("solver", ["unipc", "euler"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tiny_latents(studio: Callable[..., Any], layout: str, solver: str, guidance: float) -> None:
    check(
        studio(layout, solver),
        prompt="a cat, über den Dächern",
        negative_prompt="blurry" if guidance > 1 else None,
        num_inference_steps=6,
        num_frames=9,
        guidance_scale=guidance,
    )


def test_each_expert_has_its_own_guidance(studio: Callable[..., Any]) -> None:
    check(studio("wan22-a14b"), num_inference_steps=6, guidance_scale=4.0, guidance_scale_2=1.5, boundary_ratio=0.7)


def test_two_pictures(studio: Callable[..., Any]) -> None:
    place = studio("wan22-a14b")
    check(place, last_image=place.picture(5), num_frames=9)


@pytest.mark.parametrize("solver", ["unipc", "euler"])
def test_another_shift(studio: Callable[..., Any], solver: str) -> None:
    check(studio("wan22-ti2v", solver), flow_shift=7.0, num_inference_steps=5)


def test_a_prompt_that_is_cut(tiny_studio: Any) -> None:
    check(tiny_studio, prompt="left and right " * 20)


def test_the_largest_seed_and_one_frame(tiny_studio: Any) -> None:
    check(tiny_studio, seed=2**64 - 1, num_frames=1)


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "guidance"), [("unipc", 3.0), ("unipc", 1.0), ("euler", 3.0), ("euler", 1.0)])
def test_demo_latents(demo_studio: Any, tmp_path: Path, solver: str, guidance: float) -> None:
    if solver == "euler":
        demo_studio.directory = with_euler(demo_studio.directory, tmp_path / "euler")
    check(
        demo_studio,
        prompt="the camera pans slowly to the left",
        width=128,
        height=128,
        num_inference_steps=20,
        guidance_scale=guidance,
    )


def with_euler(directory: Path, copy: Path) -> Path:
    """The same model, its files linked, under another solver."""
    for file in directory.rglob("*"):
        if file.is_file() and file.parent.name != "scheduler":
            place = copy / file.relative_to(directory)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(file)
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 3.0}
    (copy / "scheduler").mkdir()
    (copy / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    return copy
