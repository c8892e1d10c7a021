"""What is not kept, or not found: whose entries are whose, and nothing that would be other bits at another time."""

import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from tests.kept import REQUEST, STEPS, Open, RunAll, engine_of, hits, made, misses
from videoserve.planning.identity import Maker
from videoserve.video.receipt import make_receipt
from videoserve_cache.tiers import Key


def test_without_a_seed_nothing_whole_is_kept(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache)
    for number in ("1", "2"):
        _, receipt = made(tiny_studio, engine, run_all, tiny_studio.job(number, **(REQUEST | {"seed": None})))
    assert "result" not in hits(receipt) + misses(receipt)
    assert cache.entries(kind="result")[0] == []


def test_what_had_no_room_for_its_forecasts_is_not_kept(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache, step_cache_bytes=1000)
    mask = {"policy": "mask", "steps": "RR.R", "warmup": 1}
    _, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("1", cache=mask, **REQUEST))
    assert receipt["steps"] == "RRRR"
    assert {row["kind"] for row in cache.entries()[0]} == {"text_emb", "img_cond"}


def test_a_result_that_is_deleted_while_it_is_kept_fails_no_job(
    tiny_studio: Any, run_all: RunAll, open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache)
    receipt_of = make_receipt

    def deleted(run: Any, components: Any, environment: Any, outputs: Any, finished_at: float) -> dict[str, Any]:
        """Somebody deletes a video with the same bytes in between."""
        tiny_studio.files.delete(outputs["video"].sha256)
        return receipt_of(run, components, environment, outputs, finished_at)

    monkeypatch.setattr("videoserve.video.stages.make_receipt", deleted)
    made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    assert cache.entries(kind="result")[0] == []


def test_tenants_share_nothing(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    engine = engine_of(tiny_studio, open_cache())
    made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    job = tiny_studio.job("2", **REQUEST)
    object.__setattr__(job, "tenant", "other")
    _, receipt = made(tiny_studio, engine, run_all, job)
    assert hits(receipt) == []


def test_a_damaged_entry_is_computed_again(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache)
    first, _ = made(tiny_studio, engine, run_all, tiny_studio.job("1", **REQUEST))
    cache.device.clear()
    for row in cache.entries()[0]:
        key = Key(kind=row["kind"], digest=row["digest"], tenant=row["tenant"], model=row["model"])
        cache.drop("digest", row["digest"])
        assert cache.put(key, b"no entry", about={}, cost_s=1.0, cls="E0")
    again, receipt = made(tiny_studio, engine, run_all, tiny_studio.job("2", **REQUEST))
    assert (again, hits(receipt)) == (first, [])


def test_a_batch_that_was_forced_leaves_nothing(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache, batch=2)
    for number in ("1", "2"):
        engine.admit(tiny_studio.job(number, **(REQUEST | {"seed": int(number)})), None)
    run_all(engine)
    assert {row["kind"] for row in cache.entries()[0]} == {"text_emb", "img_cond"}


def test_no_step_waits_for_what_is_left_and_the_end_does(
    tiny_studio: Any, run_all: RunAll, open_cache: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, gate = open_cache(), threading.Event()
    engine, put = engine_of(tiny_studio, cache), cache.put

    def slow(key: Key, *told: Any, **more: Any) -> bool:
        assert gate.wait(60)
        return put(key, *told, **more)

    monkeypatch.setattr(cache, "put", slow)
    engine.admit(tiny_studio.job("1", **REQUEST), None)
    (run,) = engine._schedule
    while run.stage != "write":
        engine.step(lambda event: None)
    assert cache.entries()[0] == []
    gate.set()
    run_all(engine)
    # Those that were on their way to it are of no use any more.
    kinds = [row["kind"] for row in cache.entries()[0]]
    assert sorted(set(kinds)) == ["final_latent", "img_cond", "plan", "result", "text_emb"]
    engine.close()


def test_another_maker_finds_nothing(studio: Callable[..., Any], run_all: RunAll, open_cache: Open) -> None:
    mine, other = studio("wan22-ti2v"), studio("wan22-ti2v", "euler")
    engines = [engine_of(mine, open_cache()), engine_of(mine, open_cache(), dtype="bfloat16")]
    engines.append(engine_of(other, open_cache()))
    makers = [Maker.from_dict(engine.shown["maker"]) for engine in engines]  # type: ignore[arg-type]
    for name in ("guided", "plain"):
        assert len({getattr(maker, name) for maker in makers}) == 3
    assert makers[0].text == makers[2].text
    assert makers[0].text != makers[1].text
    assert {field.name for field in fields(Maker)} == set(engines[0].shown["maker"])  # type: ignore[call-overload]


def test_who_wants_no_reuse_gets_and_leaves_nothing(tiny_studio: Any, run_all: RunAll, open_cache: Open) -> None:
    cache = open_cache()
    engine = engine_of(tiny_studio, cache)
    for number in ("1", "2"):
        _, receipt = made(tiny_studio, engine, run_all, tiny_studio.job(number, cache={"reuse": False}, **REQUEST))
        assert (receipt["reuse"]["entries"], receipt["steps"]) == ([], "R" * STEPS)
    assert cache.entries()[0] == []
