"""A connection that dies after a call was applied: the repetition has no second effect and gets the first answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import BusyLoadingError
from redis.exceptions import ConnectionError as RedisConnectionError

from videoserve.broker import Broker
from videoserve.broker.keys import KEYS
from videoserve.broker.link import Link
from videoserve.errors import NotFound
from videoserve.types import Appetite, Event, Job, Output

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]


@pytest.fixture
def cuts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes every script run and then lose its answer, once. Returns the list of what was lost."""
    lost: list[str] = []
    for name in ("evalsha", "eval"):
        run = getattr(broker._link.short, name)

        async def cut(script: str, keys: int, *told: str, run: Callable[..., Awaitable[Any]] = run) -> Any:
            answer = await run(script, keys, *told)
            nonce = told[0]
            if nonce and nonce not in lost:
                lost.append(nonce)
                raise RedisConnectionError("The answer is lost.")
            return answer

        monkeypatch.setattr(broker._link.short, name, cut)
    return lost


async def test_every_write_may_be_applied_twice(broker: Broker, make_job: MakeJob, cuts: list[str]) -> None:
    jobs = [make_job(name, plan={"image": name}, webhook_url="https://x.example/") for name in "abcd"]
    await broker.submit(jobs[:1], queue_limit=1, key_queue_limit=1)
    await broker.submit(jobs[1:], idempotency=("key", "body"), queue_limit=4, key_queue_limit=4)
    assert await broker.depth("video") == {"queued": 4, "running": 0, "webhooks": 0}
    claims = [await broker.claim("video", "w", IDLE) for _ in "abc"]
    assert [claim.job.id for claim in claims if claim] == ["a", "b", "c"]
    assert (await broker.depth("video"))["running"] == 3
    a, b, c = (claim.fence for claim in claims if claim)
    for sha, freed in (("c1", []), ("c2", ["c1"])):
        told = [
            Event(job_id="a", kind="stage", data={"stage": "denoise"}),
            Event(job_id="a", kind="adjusted", data={"sentence": sha}),
            Event(job_id="a", kind="checkpoint", data={"sha256": sha, "stage": "denoise", "step": 1}),
        ]
        assert await broker.record("a", a, told) == freed
    assert await broker.finish("a", a, {"video": Output(sha256="v", bytes=1, media_type="video/mp4")}, {}) == ["c2"]
    kinds = [event.kind async for event in broker.events("a")]
    assert kinds == ["stage", "adjusted", "stage", "adjusted", "done"]
    found = await broker.get("a")
    assert found is not None
    assert found[1].adjustments == ("c1", "c2")

    await broker.fail("b", b, "x", "Again.", retry=True)
    await broker.release("c", c)
    states = [found[1] for found in await broker.get_many(["b", "c"]) if found]
    assert [(state.status, state.attempt, len(state.reasons)) for state in states] == [
        ("queued", 1, 1),
        ("queued", 0, 0),
    ]
    await broker.cancel("d")
    assert await broker.delete("d") == ["d"]
    with pytest.raises(NotFound):
        await broker.delete("d")
    # "a" and "d" ended, each told once.
    assert (await broker.depth("video"))["webhooks"] == 2
    assert len(cuts) == 13


async def test_a_call_may_be_repeated_long_after_it_was_applied(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    said = [Event(job_id="a", kind="adjusted", data={"sentence": "Once."})]
    token = [Event(job_id="a", kind="delta", data={"text": "once"})]
    for _ in range(2):
        await broker.record("a", claim.fence, said, call="first")
        # What was answered is remembered for a minute only.
        await broker._link.short.delete(KEYS["once"] + "first")
    for _ in range(2):
        assert await broker.tell([("a", claim.fence, token)], call="second") == set()
        await broker._link.short.delete(KEYS["once"] + "second")
    await broker.record("a", claim.fence, said, call="third")
    await broker.fail("a", claim.fence, "x", "An end.", retry=False)
    assert [event.kind async for event in broker.events("a")] == ["adjusted", "delta", "adjusted", "failed"]
    found = await broker.get("a")
    assert found is not None
    assert found[1].adjustments == ("Once.", "Once.")


async def test_a_worker_may_repeat_an_end_it_could_not_confirm(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job(name) for name in "abc"], **ROOMY)
    claims = [await broker.claim("video", "w", IDLE) for _ in "abc"]
    a, b, c = (claim.fence for claim in claims if claim)
    for _ in range(2):
        await broker.finish("a", a, {}, {})
        await broker.fail("b", b, "x", "Again.", retry=True)
        await broker.release("c", c)
    states = [found[1] for found in await broker.get_many(["a", "b", "c"]) if found]
    assert [(state.status, state.attempt, state.seq) for state in states] == [
        ("completed", 1, 1),
        ("queued", 1, 0),
        ("queued", 0, 0),
    ]


async def test_a_wait_that_was_long_is_tried_again_all_the_same(redis_url: str) -> None:
    link = Link(redis_url, retry_s=0.1)
    calls = 0

    async def wait() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0.2)
        if calls == 1:
            raise RedisConnectionError("gone")
        return "news"

    assert await link.patiently(wait) == "news"
    await link.close()


async def test_a_loading_server_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = broker._link.short.hmget
    answers: list[Exception] = [BusyLoadingError("LOADING"), RedisConnectionError("gone"), TimeoutError()]

    async def hmget(*told: Any) -> Any:
        if answers:
            raise answers.pop()
        return await real(*told)

    monkeypatch.setattr(broker._link.short, "hmget", hmget)
    assert await broker.get("a") is None
    assert answers == []
