"""The step cache in the engine: what is skipped, what stays the same to the last bit, what is left behind."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve.types import Event
from videoserve.video import steps
from videoserve.video.engine import VideoEngine
from videoserve.video.leader import Leader
from videoserve.video.run import Run, need
from videoserve_cache.steps.probe import LatentProbe

RunAll = Callable[[VideoEngine], list[Event]]
LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
STEPS = 10
FIELDS: dict[str, Any] = {"num_inference_steps": STEPS, "guidance_scale": 2.5}
MASK = {"policy": "mask", "steps": "RR..R..R.R"}
REPLAYED = MASK | {"replay": True}
# Tiny models are wild: it takes much for a change to be too large.
LATENT = {"policy": "latent", "threshold": 50.0, "max_skips": 2}


def receipt_of(events: list[Event], job_id: str = "job") -> dict[str, Any]:
    (done,) = [event for event in events if event.job_id == job_id and event.kind == "done"]
    receipt: dict[str, Any] = done.data["receipt"]
    return receipt


def made(place: Any, run_all: RunAll, cache: dict[str, Any] | None, **fields: Any) -> tuple[str, dict[str, Any]]:
    """The digest and the receipt of a job that has an engine to itself."""
    engine = place.shared()
    engine.admit(place.job(cache=cache, **(FIELDS | fields)), None)
    events = run_all(engine)
    assert engine._policies.budget.held == 0
    return place.result(events), receipt_of(events)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_off_computes_what_no_cache_would(
    studio: Callable[..., Any], run_all: RunAll, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    place = studio(layout)
    whole, receipt = made(place, run_all, None)
    assert (receipt["steps"], receipt["cache"]["steps_saved"]) == ("R" * STEPS, 0)
    monkeypatch.setattr(LatentProbe, "sums", None)
    for cache in ({"policy": "off"}, {"policy": "latent", "threshold": 0}, {"quality": "exact"}):
        assert made(place, run_all, cache)[0] == whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_steps_computed_with_everything_kept_changes_nothing(
    studio: Callable[..., Any], run_all: RunAll, layout: str
) -> None:
    place = studio(layout)
    whole, _ = made(place, run_all, None)
    result, receipt = made(place, run_all, LATENT | {"threshold": 1e-30, "order": 2})
    assert receipt["cache"]["peak_bytes"] > 0
    assert (result, receipt["steps"]) == (whole, "R" * STEPS)
    assert made(place, run_all, MASK | {"steps": "R" * STEPS})[0] == whole


@pytest.mark.parametrize(
    ("layout", "cache"), [("wan21-i2v", MASK), ("wan22-a14b", REPLAYED), ("wan22-a14b", LATENT), ("wan22-ti2v", LATENT)]
)
def test_skipped_steps_ask_nothing_of_any_rank(
    studio: Callable[..., Any], run_all: RunAll, monkeypatch: pytest.MonkeyPatch, layout: str, cache: dict[str, Any]
) -> None:
    place = studio(layout)
    asked = []
    real = Leader.denoise
    monkeypatch.setattr(
        Leader, "denoise", lambda self, runs, *rest: (asked.extend(run.id for run in runs), real(self, runs, *rest))[1]
    )
    result, receipt = made(place, run_all, cache)
    steps = receipt["steps"]
    assert "." in steps
    assert len(asked) == steps.count("R")
    assert receipt["batch"] == [int(letter == "R") for letter in steps]
    told = receipt["cache"]
    assert (told["steps"], told["uncond_steps"], told["steps_saved"]) == (steps, steps, steps.count("."))
    assert told["planned"] in (None, steps)
    assert (told["planned"] is None) == (cache is LATENT)
    assert result != made(place, run_all, None)[0]


def test_an_expert_begins_with_a_computed_step(studio: Callable[..., Any], run_all: RunAll) -> None:
    _, receipt = made(studio("wan22-a14b"), run_all, {"policy": "mask", "steps": "RR" + "." * 8, "max_skips": 9})
    # Two computed steps of each expert, and the last step.
    assert receipt["steps"].count("R") == 5
    assert receipt["cache"]["why"].count("first") == 2
    assert receipt["steps"] == receipt["cache"]["planned"]


class Known:
    """In place of the model: output less input is a polynomial in the noise level."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.calls = 0

    def velocities(self, components: Any, runs: Sequence[Run]) -> list[Tensor]:
        self.calls += 1
        found = []
        for run in runs:
            latents, solver = need(run.latents, "latents"), need(run.solver, "solver")
            sigma = solver.sigmas[solver.index]
            parts = [torch.full_like(latents, 0.3 + power).cumsum(2) * sigma**power for power in range(self.order + 1)]
            found.append(latents + sum(parts[1:], parts[0]))
        return found


@pytest.mark.parametrize(
    ("order", "cache"),
    [
        (0, MASK | {"order": 0}),
        (0, REPLAYED | {"order": 2}),
        (0, LATENT),
        (1, MASK),
    ],
)
@pytest.mark.parametrize("solver", ["unipc", "euler"])
def test_what_can_be_forecast_comes_out_as_if_computed(
    studio: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, solver: str, order: int, cache: dict[str, Any]
) -> None:
    place, known = studio("wan22-ti2v", solver), Known(order)
    monkeypatch.setattr(steps, "velocities", known.velocities)
    whole = place.latents(place.shared(), place.job(**FIELDS))
    computed = known.calls
    assert computed == STEPS
    skipped = place.latents(place.shared(), place.job(cache=cache, **FIELDS))
    assert known.calls - computed < STEPS
    torch.testing.assert_close(skipped, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("solver", ["unipc", "euler"])
def test_a_replay_mends_a_gap_behind_one_computed_step(
    studio: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, solver: str
) -> None:
    place, known = studio("wan22-ti2v", solver), Known(1)
    monkeypatch.setattr(steps, "velocities", known.velocities)
    whole = place.latents(place.shared(), place.job(**FIELDS))
    cache = {"policy": "mask", "steps": "R..R..R..R", "warmup": 1}
    plain, mended = (
        place.latents(place.shared(), place.job(cache=cache | {"replay": replay}, **FIELDS)) for replay in (False, True)
    )
    assert known.calls == STEPS + 2 * 4
    assert 8 * (mended - whole).norm() < (plain - whole).norm()


@pytest.mark.parametrize(("layout", "cache"), [("wan22-a14b", REPLAYED), ("wan22-ti2v", MASK), ("wan22-ti2v", LATENT)])
def test_a_killed_job_goes_on_bit_for_bit(
    studio: Callable[..., Any], run_all: RunAll, layout: str, cache: dict[str, Any]
) -> None:
    place = studio(layout)
    whole, told = made(place, run_all, cache)
    job = place.job(cache=cache, **FIELDS)
    for units in range(2, STEPS + 3, 2):
        dying, events = place.shared(checkpoint_steps=1), []
        dying.admit(job, None)
        for _ in range(units):
            dying.step(events.append)
        kept = [event.data for event in events if event.kind == "checkpoint"]
        survivor = place.shared()
        survivor.admit(job, kept[-1])
        ended = run_all(survivor)
        assert place.result(ended) == whole
        receipt = receipt_of(ended)
        assert receipt["steps"] == told["steps"]
        assert receipt["cache"] == told["cache"] | {"peak_bytes": receipt["cache"]["peak_bytes"]}


def halfway(place: Any, cache: dict[str, Any]) -> tuple[Any, dict[str, Any], int]:
    """A job, what it was suspended with behind its fourth step, and how many bytes its step cache held then."""
    engine, job = place.shared(), place.job(cache=cache, **FIELDS)
    engine.admit(job, None)
    for _ in range(5):
        engine.step(lambda event: None)
    held = engine._policies.budget.held
    return job, need(engine.suspend(job.id), "checkpoint"), held


def test_a_resumed_job_goes_on_without_a_cache_that_has_no_room(tiny_studio: Any, run_all: RunAll) -> None:
    job, kept, held = halfway(tiny_studio, LATENT)
    # Room for all but the last of what is kept.
    engine = tiny_studio.engine(step_cache_bytes=held - 1)
    engine.admit(job, kept)
    assert engine._policies.budget.held == 0
    events = run_all(engine)
    (sentence,) = [event.data["sentence"] for event in events if event.kind == "adjusted"]
    assert sentence.endswith("From step 5 on every step is computed.")
    receipt = receipt_of(events)
    assert (receipt["resumed_from"], receipt["steps"][4:]) == ([4], "R" * 6)
    assert receipt["adjustments"][-1] == sentence


@pytest.mark.parametrize("fault", ["format", "policy", "record"])
def test_a_step_cache_of_another_version_starts_the_job_over(
    tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    whole, _ = made(tiny_studio, run_all, LATENT)
    with monkeypatch.context() as before:
        if fault == "format":
            before.setattr("videoserve_cache.steps.cache.FORMAT", "an older one")
        if fault == "policy":
            before.setattr("videoserve_cache.steps.latent.Latent.name", "drift")
        if fault == "record":
            before.setattr("videoserve.video.checkpoint.asdict", lambda record: {"of": "another time"})
        job, kept, _ = halfway(tiny_studio, LATENT)
    engine = tiny_studio.shared()
    engine.admit(job, kept)
    assert engine._policies.budget.held == 0
    events = run_all(engine)
    assert (tiny_studio.result(events), receipt_of(events)["resumed_from"]) == (whole, [])


@pytest.mark.parametrize("cache", [REPLAYED, LATENT])
def test_a_job_that_is_given_up_leaves_nothing(tiny_studio: Any, run_all: RunAll, cache: dict[str, Any]) -> None:
    engine = tiny_studio.shared(preview_steps=1)
    job, following = tiny_studio.job("gone", cache=cache, **FIELDS), tiny_studio.job("next", cache=cache, **FIELDS)
    engine.admit(following, None)
    alone = tiny_studio.result(run_all(engine), "next")
    held = []
    for units in range(STEPS + 2):
        engine.admit(job, None)
        for _ in range(units):
            engine.step(lambda event: None)
        held.append(engine._policies.budget.held)
        engine.cancel("gone")
        assert engine._policies.budget.held == engine.bytes_held() == 0
    assert max(held) > 0
    engine.admit(following, None)
    assert tiny_studio.result(run_all(engine), "next") == alone


def test_a_job_that_fails_leaves_nothing(tiny_studio: Any, run_all: RunAll, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = made(tiny_studio, run_all, REPLAYED)
    engine, real = tiny_studio.shared(), steps.velocities
    for call in range(1, REPLAYED["steps"].count("R") + 1):
        left = [call]

        def failing(components: Any, runs: Sequence[Run], left: list[int] = left) -> list[Tensor]:
            left[0] -= 1
            if not left[0]:
                raise RuntimeError("of no use any more")
            return real(components, runs)

        monkeypatch.setattr(steps, "velocities", failing)
        engine.admit(tiny_studio.job("gone", cache=REPLAYED, **FIELDS), None)
        assert run_all(engine)[-1].kind == "failed"
        assert engine._policies.budget.held == engine.bytes_held() == 0
    monkeypatch.setattr(steps, "velocities", real)
    assert made(tiny_studio, run_all, REPLAYED)[0] == whole


@pytest.mark.parametrize("layout", ["wan22-a14b", "wan22-ti2v"])
def test_company_that_skips_other_steps(studio: Callable[..., Any], run_all: RunAll, layout: str) -> None:
    place = studio(layout)
    caches = [None, MASK, {"policy": "mask", "steps": "RR.R.R...R"}, LATENT]
    jobs = [place.job(f"job {n}", seed=n, created_at=float(n), cache=cache, **FIELDS) for n, cache in enumerate(caches)]
    alone = [place.solo(job) for job in jobs]
    engine = place.shared(batch=4)
    for job in jobs:
        engine.admit(job, None)
    events = run_all(engine)
    assert [place.result(events, job.id) for job in jobs] == alone
    batches = [receipt_of(events, job.id)["batch"] for job in jobs]
    assert batches[0][:2] == [4, 4]
    assert batches[0][2] > 1
    for batch, job in zip(batches, jobs, strict=True):
        steps = receipt_of(events, job.id)["steps"]
        assert [shared > 0 for shared in batch] == [letter == "R" for letter in steps]


def test_a_full_budget_is_told_and_costs_the_saving_only(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.engine(step_cache_bytes=1000)
    engine.admit(tiny_studio.job(cache=MASK, **FIELDS), None)
    events = run_all(engine)
    assert tiny_studio.result(events) == made(tiny_studio, run_all, None)[0]
    (sentence,) = [event.data["sentence"] for event in events if event.kind == "adjusted"]
    assert "1000 bytes" in sentence
    assert "From step 1 on every step is computed." in sentence
    assert receipt_of(events)["steps"] == "R" * STEPS


def test_progress_counts_what_is_computed(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job(cache=MASK, **FIELDS), None)
    told = [event.data for event in run_all(engine) if event.kind == "progress"]
    assert [data["step"] for data in told[: STEPS + 1]] == list(range(STEPS + 1))
    progress = [data["progress"] for data in told]
    assert progress == sorted(progress)
    for step, letter in enumerate(MASK["steps"], start=1):
        # A skipped step is no work.
        assert letter == "R" or progress[step] == progress[step - 1]
    assert progress[STEPS] > progress[0]
