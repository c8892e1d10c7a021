"""The uncached video beside a cached one: it is the very one, and nothing of it but figures stays."""

from collections.abc import Callable
from typing import Any

import pytest

from videoserve.types import Event
from videoserve.video.engine import VideoEngine
from videoserve.video.verify import distance

RunAll = Callable[[VideoEngine], list[Event]]
STEPS = 6
FIELDS: dict[str, Any] = {"num_inference_steps": STEPS, "num_frames": 9, "guidance_scale": 2.5}
MASK = {"policy": "mask", "steps": "RR.R.R"}
VERIFIED = MASK | {"verify": True}


@pytest.mark.parametrize("layout", ["wan22-a14b", "wan22-ti2v"])
def test_the_receipt_says_how_near_it_came(studio: Callable[..., Any], run_all: RunAll, layout: str) -> None:
    place = studio(layout)
    engine = place.shared(preview_steps=2)
    engine.admit(place.job(cache=VERIFIED, **FIELDS), None)
    events = run_all(engine)
    receipt = events[-1].data["receipt"]
    fidelity = receipt["cache"]["fidelity"]
    exact, cached = (place.latents(engine, place.job(cache=cache, **FIELDS)) for cache in (None, MASK))
    if layout == "wan22-a14b":
        # Nothing is put into the latents at the end on this layout, so that these are what was compared.
        assert fidelity["latents_relative_l2"] == distance(cached, exact)
    assert fidelity["latents_relative_l2"] > 0
    assert fidelity["frames"] == 9
    assert 0 < fidelity["worst"]["psnr_db"] <= fidelity["mean"]["psnr_db"]
    assert place.result(events) == place.solo(place.job(cache=MASK, **FIELDS))
    assert "." in receipt["steps"]
    assert (receipt["steps"], len(receipt["batch"])) == (receipt["cache"]["planned"], STEPS)
    assert set(receipt["stages"]) == {"encode", "denoise", "verify", "decode", "write"}
    told = [event.data for event in events if event.kind == "progress"]
    assert [(data["step"], data["steps"]) for data in told[: 2 * STEPS]] == [(n, 2 * STEPS) for n in range(2 * STEPS)]
    progress = [data["progress"] for data in told]
    assert progress == sorted(progress)
    assert engine.bytes_held() == 0


def test_killed_anywhere_it_ends_the_same(tiny_studio: Any, run_all: RunAll) -> None:
    job = tiny_studio.job(cache=VERIFIED, **FIELDS)
    engine = tiny_studio.shared()
    engine.admit(job, None)
    events = run_all(engine)
    whole, fidelity = tiny_studio.result(events), events[-1].data["receipt"]["cache"]["fidelity"]
    # The encode, both ways through the steps, and two pieces of each video.
    for units in range(3, 1 + 2 * STEPS + 4, 2):
        dying, told = tiny_studio.shared(checkpoint_steps=1), []
        dying.admit(job, None)
        for _ in range(units):
            dying.step(told.append)
        kept = [event.data for event in told if event.kind == "checkpoint"]
        assert [data["step"] for data in kept] == sorted(data["step"] for data in kept)
        survivor = tiny_studio.shared()
        survivor.admit(job, kept[-1])
        ended = run_all(survivor)
        receipt = ended[-1].data["receipt"]
        assert tiny_studio.result(ended) == whole
        assert (receipt["cache"]["fidelity"], receipt["steps"]) == (fidelity, "RR.R.R")


def test_cancelled_anywhere_nothing_stays(tiny_studio: Any) -> None:
    engine = tiny_studio.shared()
    for units in range(STEPS, 2 * STEPS + 5):
        engine.admit(tiny_studio.job(cache=VERIFIED, **FIELDS), None)
        for _ in range(units):
            engine.step(lambda event: None)
        engine.cancel("job")
        assert engine.bytes_held() == engine._policies.budget.held == 0


def test_what_skips_nothing_is_its_own_reference(tiny_studio: Any, run_all: RunAll) -> None:
    engine = tiny_studio.shared()
    for cache in ({"quality": "exact", "verify": True}, MASK | {"steps": "R" * STEPS, "verify": True}):
        engine.admit(tiny_studio.job(cache=cache, **FIELDS), None)
        receipt = run_all(engine)[-1].data["receipt"]
        assert receipt["cache"]["fidelity"] is None
        assert "verify" not in receipt["stages"]
