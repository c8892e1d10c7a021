"""Adapters in the engine: each job gets its own, the base stays what it was, and what cannot be bound fails its job."""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_adapters import Shop, use
from videoserve.types import AdapterUse, Event
from videoserve.video.bindings import Bindings
from videoserve.video.engine import VideoEngine
from videoserve_lora.canonical import opened
from videoserve_lora.slots import Slots, Use

RunAll = Callable[[VideoEngine], list[Event]]
FIELDS: dict[str, Any] = {"num_frames": 5, "num_inference_steps": 2}


def weights(engine: VideoEngine) -> str:
    """A digest over every parameter of the transformers."""
    total = hashlib.sha256()
    for expert in engine.components.experts:
        for name, parameter in sorted(expert.module.named_parameters()):
            total.update(name.encode() + parameter.detach().contiguous().numpy().tobytes())
    return total.hexdigest()


@pytest.fixture(scope="module")
def shop(tiny_studio: Any, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tiny_studio, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def pair(shop: Shop) -> tuple[str, str]:
    """One of matrices alone, one with norms, tables and biases."""
    return shop.add(1), shop.add(2, rank=7, extras=True)


def test_a_job_has_its_adapters_and_the_next_one_has_not(tiny_studio: Any, run_all: RunAll, pair: Any) -> None:
    engine = tiny_studio.shared(batch=1)
    before, base = weights(engine), tiny_studio.latents(engine, tiny_studio.job("base", **FIELDS))
    found = {}
    for scale in (1.0, 0.5, -1.0):
        job = tiny_studio.job("with", loras=(use(pair[1], scale),), **FIELDS)
        found[scale] = tiny_studio.latents(engine, job)
        assert (found[scale] - base).abs().max() > 1e-3
        assert torch.equal(tiny_studio.latents(engine, tiny_studio.job("base", **FIELDS)), base)
        assert weights(engine) == before
    assert not torch.equal(found[1.0], found[0.5])


def test_interleaved_jobs_get_what_they_get_alone(tiny_studio: Any, run_all: RunAll, pair: Any) -> None:
    one, other = pair
    sets = {
        "a": (use(one),),
        "none": (),
        "a+b": (use(other), use(one)),
        "half b": (use(other, 0.5),),
        "b": (use(other),),
    }
    jobs = [tiny_studio.job(name, seed=3, loras=loras, **FIELDS) for name, loras in sets.items()]
    alone = {job.id: tiny_studio.solo(job) for job in jobs}
    assert len(set(alone.values())) == len(jobs)
    engine = tiny_studio.shared(batch=2, aging_s=1e-3)
    for job in [*jobs, *(tiny_studio.job(f"{job.id} again", seed=3, loras=sets[job.id], **FIELDS) for job in jobs)]:
        engine.admit(job, None)
    events = run_all(engine)
    for job in jobs:
        assert tiny_studio.result(events, job.id) == alone[job.id]
        assert tiny_studio.result(events, f"{job.id} again") == alone[job.id]


def test_equal_to_changed_weights(tiny_studio: Any, pair: Any, shop: Shop) -> None:
    """The forward with slots is that of a model whose weights have the change in them."""
    engine = tiny_studio.engine()
    job = tiny_studio.job("with", loras=(use(pair[0], 0.5), use(pair[1])), **FIELDS)
    slotted = tiny_studio.latents(engine, job)
    adapters = engine.components.adapters
    adapters.bind(0, ())
    with ExitStack() as stack, torch.no_grad():
        uses = [
            Use(digest=digest, adapter=stack.enter_context(opened(shop.store.path(digest))), weight=weight)
            for digest, weight in ((pair[0], 0.5), (pair[1], 1.0))
        ]
        # Without any place that takes a slot, everything is a full delta.
        slots = Slots(uses, "any", places=frozenset())
        parameters = adapters._binders[0]._parameters
        for name in slots.parameters:
            parameters[name] += slots.delta(name).reshape(parameters[name].shape)
    merged = tiny_studio.latents(engine, tiny_studio.job("merged", **FIELDS))
    assert (slotted - merged).abs().max() < 2e-5 * merged.abs().max()


@pytest.mark.parametrize("what", ["gone", "damaged", "other model"])
def test_what_cannot_be_bound_fails_its_job_alone(
    tiny_studio: Any, run_all: RunAll, shop: Shop, pair: Any, what: str, studio: Any, tmp_path: Path
) -> None:
    engine = tiny_studio.engine()
    base = tiny_studio.solo(tiny_studio.job("base", **FIELDS))
    if what == "gone":
        digest = "0" * 64
    elif what == "damaged":
        digest = shop.add(77)
        path = shop.store.path(digest)
        path.chmod(0o644)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        other = Shop(studio("wan21-i2v"), tmp_path)
        digest = other.add(5)
        place = shop.store._place(digest)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(other.store.path(digest).read_bytes())
    engine.admit(tiny_studio.job("good", loras=(use(pair[0]),), **FIELDS), None)
    engine.admit(tiny_studio.job("bad", created_at=1.0, loras=(use(digest),), **FIELDS), None)
    engine.admit(tiny_studio.job("base", created_at=2.0, **FIELDS), None)
    before = weights(engine)
    events = run_all(engine)
    failed = [event for event in events if event.kind == "failed"]
    assert [(event.job_id, event.data["code"]) for event in failed] == [("bad", "adapter_unusable")]
    sentence = {"gone": "No adapter has the digest", "damaged": "is damaged", "other model": "is for another model"}
    assert sentence[what] in failed[0].data["message"]
    assert tiny_studio.result(events, "base") == base
    assert tiny_studio.result(events, "good") == tiny_studio.solo(
        tiny_studio.job("good", loras=(use(pair[0]),), **FIELDS)
    )
    assert weights(engine) == before


def test_a_slot_has_the_type_of_its_weight(tiny_studio: Any, pair: Any) -> None:
    """A model in bfloat16 keeps its time embedding in float32."""
    engine = tiny_studio.engine(dtype="bfloat16")
    base = tiny_studio.latents(engine, tiny_studio.job("base", **FIELDS))
    found = tiny_studio.latents(engine, tiny_studio.job("with", loras=(use(pair[1]),), **FIELDS))
    slots = [(linear.slot, linear.weight) for linear in engine.components.adapters._binders[0].linears.values()]
    kinds = {(slot.a.dtype, slot.b.dtype, weight.dtype) for slot, weight in slots if slot is not None}
    assert kinds == {(dtype, dtype, dtype) for dtype in (torch.float32, torch.bfloat16)}
    exact = tiny_studio.shared()
    with_it, without = (
        tiny_studio.latents(exact, tiny_studio.job("job", loras=loras, **FIELDS)) for loras in ((use(pair[1]),), ())
    )
    off = torch.linalg.vector_norm((found - base).float() - (with_it - without))
    assert off < 0.1 * torch.linalg.vector_norm(with_it - without)


def test_the_receipt_names_them(tiny_studio: Any, run_all: RunAll, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_studio.shared()
    engine.admit(tiny_studio.job("with", loras=(use(pair[1], 0.5),), **FIELDS), None)
    (run,) = engine._schedule
    while run.stage != "write":
        engine.step(lambda event: None)
    # Its file is not read again for it.
    monkeypatch.setattr(Bindings, "_path", None)
    receipt = run_all(engine)[-1].data["receipt"]
    (about,) = receipt["adapters"]
    assert (about["digest"], about["weight"], about["target"], about["rank"]) == (pair[1], 0.5, "all", 7)
    assert about["parameters"] > 20


def test_a_resumed_job_has_them_again(tiny_studio: Any, run_all: RunAll, pair: Any) -> None:
    job = tiny_studio.job("with", loras=(use(pair[1]),), num_frames=5, num_inference_steps=3)
    alone = tiny_studio.solo(job)
    engine = tiny_studio.shared()
    engine.admit(job, None)
    engine.step(lambda event: None)
    engine.step(lambda event: None)
    checkpoint = engine.suspend(job.id)
    assert checkpoint is not None
    other = tiny_studio.engine()
    other.admit(job, checkpoint)
    assert tiny_studio.result(run_all(other), job.id) == alone


@pytest.mark.parametrize("target", ["high", "low"])
def test_one_expert_of_two(studio: Any, run_all: RunAll, tmp_path: Path, target: str) -> None:
    place = studio("wan22-a14b")
    digest = Shop(place, tmp_path).add(1, expert=target)
    fields = {"num_frames": 5, "num_inference_steps": 3, "boundary_ratio": 0.9}
    engine = place.shared()
    ask = use(digest, parts=(target,))
    assert place.job("with", loras=(ask,), **fields).plan["loras"][0]["target"] == target
    with_it = place.latents(engine, place.job("with", loras=(ask,), **fields))
    base = place.latents(engine, place.job("base", **fields))
    assert not torch.equal(with_it, base)
    bound = engine.components.adapters.of_expert(
        0 if target == "low" else 1, [AdapterUse(digest=digest, weight=1.0, target=target)]
    )
    assert bound == ()


def test_memory_keeps_the_last_used(tiny_studio: Any, shop: Shop, pair: Any) -> None:
    engine = tiny_studio.engine(adapter_memory=1)
    adapters = engine.components.adapters
    adapters.bind(0, [AdapterUse(digest=pair[0], weight=1.0)])
    first = adapters._binders[0].linears["blocks.0.attn1.to_q"].slot
    adapters.bind(0, [AdapterUse(digest=pair[0], weight=1.0)])
    assert adapters._binders[0].linears["blocks.0.attn1.to_q"].slot is first
    adapters.bind(0, [AdapterUse(digest=pair[1], weight=1.0)])
    assert list(adapters._ready) == [(0, ((pair[1], 1.0),))]
