"""Ranks that choose their plan: measured once, kept, and the videos are those of one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job
from videoserve.video.engine import VideoEngine
from videoserve.video.follower import follow
from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import look

RanksOf = Callable[[int], Callable[..., list[Any]]]


def unasked(*_: object) -> Any:
    raise AssertionError("measured again")


def chosen(world: Any, data: Path, directory: Path, jobs: list[Job], again: bool) -> Any:
    """What rank 0 chose, and the latents of its jobs at their end; with `again` nothing may be measured."""
    settings = Settings(
        data=data, device="cpu", ranks=world.size, batch=1, checkpoint_steps=0, preview_steps=0, threads=1
    )
    if world.rank:
        follow(settings, directory)
        return None
    with pytest.MonkeyPatch.context() as patch:
        if again:
            patch.setattr("videoserve.video.choose.best", unasked)
        engine = VideoEngine(settings, FileStore(data / "files"), directory)
        engine.load()
    plans = engine.components.ranks.meshes.plans
    shown: Any = engine.shown["plans"]
    assert (shown["guided"]["plan"], shown["plain"]["plan"]) == (plans.guided.name, plans.plain.name)
    assert shown["guided"]["step_s"] > 0
    for job in jobs:
        engine.admit(job, None)
    events: list[Event] = []
    results: dict[str, torch.Tensor] = {}
    while engine.step(events.append):
        for run in engine._schedule:
            if run.stage == "write":
                assert run.latents is not None
                results[run.id] = run.latents
    engine.close()
    assert all(event.kind != "failed" for event in events)
    return plans.guided.name, plans.plain.name, results


def test_one_rank_shows_its_plan_and_measures_no_links(tiny_studio: Any) -> None:
    engine = tiny_studio.shared()
    alone = {"plan": "one", "step_s": None, "measured_s": None}
    assert engine.shown["plans"] == {"guided": alone, "plain": alone}
    assert not (tiny_studio.data / "calibrations").exists()


@pytest.mark.slow
def test_what_two_ranks_choose_is_kept_and_gives_the_video_of_one(
    ranks_of: RanksOf, tiny_studio: Any, tmp_path: Path
) -> None:
    jobs = [tiny_studio.job("a", num_frames=5), tiny_studio.job("b", guidance_scale=1.0, num_frames=5)]
    guided, plain, made = ranks_of(2)(chosen, tiny_studio.data, tiny_studio.directory, jobs, False)[0]
    assert ParallelPlan.parse(guided).ranks == ParallelPlan.parse(plain).ranks == 2
    (folder,) = (tiny_studio.data / "plans").glob("*.json")
    assert folder.stem == look().fingerprint_for([])
    keys = [line.split('"')[1] for line in folder.read_text().splitlines() if ":g" in line]
    choices = [Choices(tiny_studio.data, folder.stem).get(key) for key in keys]
    assert {choice.plan.name for choice in choices if choice} == {guided, plain}
    assert all(choice.measured_s is not None and 0 < choice.measured_s < 60 for choice in choices if choice)
    # Another choice on disk is taken as it is.
    other = {"cfg2": "u2", "u2": "r2", "r2": "u2"}
    for key in keys:
        name = other.get(guided if ":g1" in key else plain, "u2")
        Choices(tiny_studio.data, folder.stem).keep(
            key, Choice(plan=ParallelPlan.parse(name), step_s=1.0, measured_s=1.0)
        )
    again = ranks_of(2)(chosen, tiny_studio.data, tiny_studio.directory, jobs, True)[0]
    assert again[:2] == (other.get(guided, "u2"), other.get(plain, "u2"))
    alone = tiny_studio.shared()
    for job in jobs:
        alone.admit(job, None)
    single: dict[str, torch.Tensor] = {}
    while alone.step(lambda event: None):
        for run in alone._schedule:
            if run.stage == "write":
                single[run.id] = run.latents
    for job in ("a", "b"):
        for results in (made, again[2]):
            torch.testing.assert_close(results[job], single[job], atol=1e-5, rtol=1e-5)
