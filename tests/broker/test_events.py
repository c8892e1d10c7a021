"""The event stream: every event once, in order, to its end."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker
from videoserve.types import Appetite, Event, Job

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]


def progress(job_id: str, percent: int) -> Event:
    return Event(job_id=job_id, kind="progress", data={"progress": percent, "step": percent, "steps": 100})


async def follow(broker: Broker, job_id: str, after: int = 0) -> list[Event]:
    return [event async for event in broker.events(job_id, after)]


async def test_followers_at_any_time_see_the_same(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    early = asyncio.create_task(follow(broker, "a"))
    for percent in range(0, 100, 10):
        await broker.record("a", claim.fence, [progress("a", percent), progress("a", percent + 5)])
    middle = asyncio.create_task(follow(broker, "a", 7))
    await broker.finish("a", claim.fence, {}, {"steps": 20})
    seen = await asyncio.wait_for(early, 10)
    assert [event.seq for event in seen] == list(range(1, 22))
    assert [event.data["progress"] for event in seen[:-1]] == list(range(0, 100, 5))
    assert seen[-1] == Event(job_id="a", kind="done", data={"outputs": {}, "receipt": {"steps": 20}}, seq=21)
    assert await asyncio.wait_for(middle, 10) == seen[7:]
    assert await follow(broker, "a", 20) == seen[20:]
    assert await follow(broker, "a", 21) == []
    assert await follow(broker, "never") == []


async def test_numbers_go_on_after_a_lost_attempt(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    for attempt in range(2):
        claim = await broker.claim("video", "w", IDLE)
        assert claim is not None
        await broker.record("a", claim.fence, [progress("a", attempt)])
        await broker.fail("a", claim.fence, "x", "Again.", retry=attempt == 0)
    seen = await follow(broker, "a")
    assert [(event.seq, event.kind) for event in seen] == [(1, "progress"), (2, "progress"), (3, "failed")]
    assert seen[-1].data == {"code": "x", "message": "Again.", "retry": False}


async def test_only_the_latest_preview_is_kept(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    with Redis.from_url(redis_url) as client:
        sizes = []
        for step in range(30):
            picture = {"step": step, "media_type": "image/webp", "base64": "x" * 50_000}
            told = [progress("a", step), Event(job_id="a", kind="preview", data=picture)]
            await broker.record("a", claim.fence, told)
            sizes.append(client.memory_usage("ev:a"))
        assert sizes[-1] < sizes[0] + 50_000
        previews = [fields for _, fields in client.xrange("ev:a") if fields[b"kind"] == b"preview"]
        assert [json.loads(fields[b"data"])["step"] for fields in previews] == [29]
        await broker.finish("a", claim.fence, {}, {})
        assert client.memory_usage("ev:a") < 50_000
    assert [event.kind for event in await follow(broker, "a")] == ["progress"] * 30 + ["done"]


async def test_a_cancelled_or_deleted_job_ends_its_followers(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a"), make_job("b")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    followers = [asyncio.create_task(follow(broker, job_id)) for job_id in ("a", "b")]
    await asyncio.sleep(0.05)
    await broker.delete("a")
    await broker.cancel("b")
    for seen in await asyncio.wait_for(asyncio.gather(*followers), 10):
        assert [(event.kind, event.data["code"]) for event in seen] == [("failed", "cancelled")]
