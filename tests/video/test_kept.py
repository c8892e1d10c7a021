"""What a request finds that earlier ones left: never other bits than it would have computed itself."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kept import LAYOUTS, REQUEST, STEPS, Open, RunAll, engine_of, hits, made, misses
from tests.tiny_adapters import Shop, use
from videoserve.types import Event


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_seed_encodes_nothing_again(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open, layout: str
) -> None:
    place = studio(layout)
    jobs = [place.job(f"{seed}", seed=seed, **REQUEST) for seed in (1, 2)]
    alone = [place.solo(job) for job in jobs]
    cache = open_cache()
    # What gives way to a later checkpoint is no reason to forget anything else.
    engine = engine_of(place, cache, checkpoint_steps=1)
    parts = ["text_emb", "text_emb", *(["img_clip"] if layout == "wan21-i2v" else []), "img_cond"]
    first, receipt = made(place, engine, run_all, jobs[0])
    assert (misses(receipt), hits(receipt)) == (["result", "final_latent", *parts], [])
    second, receipt = made(place, engine, run_all, jobs[1])
    assert (misses(receipt), hits(receipt)) == (["result", "final_latent"], parts)
    assert {entry["tier"] for entry in receipt["reuse"]["entries"] if entry["hit"]} == {"device"}
    assert [first, second] == alone
    assert receipt["prompt"]["tokens"] == 9
    # Another process of the node finds them as well.
    elsewhere = engine_of(place, open_cache())
    third, receipt = made(place, elsewhere, run_all, place.job("3", seed=3, **REQUEST))
    assert hits(receipt) == parts
    assert {entry["tier"] for entry in receipt["reuse"]["entries"] if entry["hit"]} == {"memory"}
    assert third == place.solo(place.job("3", seed=3, **REQUEST))
    assert receipt["reuse"]["bytes"]["memory"] == sum(entry.get("bytes", 0) for entry in receipt["reuse"]["entries"])
    assert receipt["reuse"]["saved_s"] > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_longer_clip_begins_with_the_latents_of_a_shorter_one(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open, layout: str
) -> None:
    place = studio(layout)
    engine = engine_of(place, open_cache())
    common = REQUEST | {"num_inference_steps": 2}
    reused = []
    for frames in (9, 13, 5, 9):
        job = place.job(f"{frames}-{len(reused)}", seed=len(reused), **(common | {"num_frames": frames}))
        video, receipt = made(place, engine, run_all, job)
        assert video == place.solo(job)
        reused.append("img_cond" in hits(receipt))
    # Of the layout that sees the first frame alone the number of frames is no matter.
    assert reused == [False, layout == "wan22-ti2v", True, True]


@pytest.mark.parametrize("name", ["tiny", "demo"])
def test_frames_of_a_vae_do_not_depend_on_those_behind_them(
    studio: Callable[..., Any], demo_studio: Any, name: str
) -> None:
    place = demo_studio if name == "demo" else studio("wan21-i2v")
    vae = place.shared().components.vae
    for height, width in ((32, 48), (80, 64), (16, 112)):
        picture = torch.rand(1, 3, 1, height, width, generator=torch.Generator().manual_seed(height)) * 2 - 1
        clip = torch.cat((picture, picture.new_zeros(1, 3, 48, height, width)), dim=2)
        whole = vae.encode(clip, most=1)
        for frames in (5, 9, 17, 33):
            assert torch.equal(vae.encode(clip[:, :, :frames], most=1), whole[:, :, : (frames - 1) // 4 + 1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_another_compression_denoises_nothing_again(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open, layout: str
) -> None:
    place = studio(layout)
    engine = engine_of(place, open_cache())
    made(place, engine, run_all, place.job("1", **REQUEST))
    for change in ({"quality": "30"}, {"fps": 5, "num_frames": 9}):
        job = place.job("2", **(REQUEST | change))
        events: list[Event] = []
        engine.admit(job, None)
        while engine.step(events.append):
            pass
        assert place.result(events, "2") == place.solo(job)
        assert [event.data["stage"] for event in events if event.kind == "stage"] == ["encode", "decode", "write"]
        receipt = events[-1].data["receipt"]
        assert (hits(receipt), receipt["steps"], receipt["batch"]) == (["final_latent"], "K" * STEPS, [0] * STEPS)
        assert receipt["negative_prompt"]["tokens"] == 1
        assert "denoise" not in receipt["stages"]


def test_a_run_that_began_with_its_last_latents_begins_again(
    tiny_studio: Any, run_all: RunAll, open_cache: Open
) -> None:
    engine = engine_of(tiny_studio, open_cache())
    made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    job = tiny_studio.job("2", quality="30", **REQUEST)
    engine.admit(job, None)
    engine.step(lambda event: None)
    assert engine.suspend("2") is None
    assert engine.bytes_held() == 0
    assert made(tiny_studio, engine, run_all, job)[0] == tiny_studio.solo(job)


@pytest.mark.parametrize("solver", ["unipc", "euler"])
@pytest.mark.parametrize("layout", ["wan22-a14b", "wan22-ti2v"])
def test_a_cancelled_job_that_is_sent_again_goes_on_where_it_was(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open, layout: str, solver: str
) -> None:
    place = studio(layout, solver)
    engine = engine_of(place, open_cache(), checkpoint_steps=1)
    job = place.job("1", **REQUEST)
    for steps in (1, 2):
        engine.admit(job, None)
        for _ in range(1 + steps):
            engine.step(lambda event: None)
        engine.cancel("1")
    again = place.job("2", **REQUEST)
    video, receipt = made(place, engine, run_all, again)
    assert video == place.solo(again)
    # The second try began behind the first one's step and took two more.
    assert receipt["steps"] == "KKKR"


def test_another_scale_of_the_low_noise_expert_goes_on_from_the_switch(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open
) -> None:
    place = studio("wan22-a14b")
    engine = engine_of(place, open_cache())
    common = REQUEST | {"num_inference_steps": 6, "boundary_ratio": 0.8}
    _, receipt = made(place, engine, run_all, place.job("1", guidance_scale_2=3.0, **common))
    job = place.job("2", guidance_scale_2=1.5, **common)
    video, receipt = made(place, engine, run_all, job)
    assert video == place.solo(job)
    high = receipt["steps"].count("K")
    assert 0 < high < 6
    assert receipt["steps"] == "K" * high + "R" * (6 - high)
    assert "boundary" in hits(receipt)
    # The first expert's own scale is another matter.
    job = place.job("3", guidance_scale_2=1.5, **(common | {"guidance_scale": 2.0}))
    video, receipt = made(place, engine, run_all, job)
    assert (video, receipt["steps"]) == (place.solo(job), "R" * 6)


@pytest.mark.parametrize("first", ["none", "high"])
def test_another_adapter_of_the_low_noise_expert_goes_on_from_the_switch(
    studio: Callable[..., Any], run_all: RunAll, open_cache: Open, tmp_path: Path, first: str
) -> None:
    place = studio("wan22-a14b")
    shop = Shop(place, tmp_path)
    low, high = (use(shop.add(seed, expert=name), parts=(name,)) for seed, name in ((1, "low"), (2, "high")))
    common = REQUEST | {"num_inference_steps": 6, "boundary_ratio": 0.8}
    engine = engine_of(place, open_cache())
    began = () if first == "none" else (high,)
    base, receipt = made(place, engine, run_all, place.job("1", loras=began, **common))
    assert receipt["steps"] == "R" * 6
    for added in (low, replace(low, scale=0.5)):
        job = place.job("2", loras=(*began, added), **common)
        video, receipt = made(place, engine, run_all, job)
        assert video == place.solo(job) != base
        taken = receipt["steps"].count("K")
        assert 0 < taken < 6
        assert receipt["steps"] == "K" * taken + "R" * (6 - taken)
        assert "boundary" in hits(receipt)
    # Another one of the high-noise expert is another video from the first step on.
    job = place.job("3", loras=(replace(high, scale=0.5), low), **common)
    video, receipt = made(place, engine, run_all, job)
    assert (video, receipt["steps"]) == (place.solo(job), "R" * 6)
    assert "boundary" not in hits(receipt)


def test_the_same_request_is_answered_without_the_model(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    engine = engine_of(tiny_studio, open_cache())
    video, _ = made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    tiny_studio.files.delete(video)
    for part in ("text_encoder", "vae", "experts"):
        object.__setattr__(engine.components, part, None)
    # What was changed of its own request is told of it, not of the first.
    job = tiny_studio.job("2", **REQUEST | {"width": 47})
    engine.admit(job, None)
    events = run_all(engine)
    assert [event.kind for event in events] == ["done"]
    receipt = events[0].data["receipt"]
    assert receipt["adjustments"] == job.plan["adjustments"] != []
    assert tiny_studio.files.has(video)
    assert (receipt["job"], receipt["steps"], receipt["stages"]) == ("2", "K" * STEPS, {})
    (entry,) = receipt["reuse"]["entries"]
    assert (entry["kind"], entry["class"], entry["tier"], entry["job"]) == ("result", "E0", "memory", "1")
    assert entry["steps"] == "R" * STEPS


def test_what_a_step_cache_forecasts_is_kept_apart(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    engine = engine_of(tiny_studio, open_cache(), checkpoint_steps=1)
    mask = {"policy": "mask", "steps": "RR.R", "max_skips": 2, "warmup": 1}
    exact, _ = made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    forecast, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("2", cache=mask, **REQUEST))
    assert (forecast != exact, receipt["steps"]) == (True, "RR.R")
    again, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("3", cache=mask, **REQUEST))
    assert (again, hits(receipt)) == (forecast, ["result"])
    _, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("4", cache=mask, quality="30", **REQUEST))
    assert (hits(receipt), receipt["cache"]["policy"]) == (["final_latent"], "mask")
