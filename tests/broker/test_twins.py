"""Jobs that ask for the same video: one is computed, and what becomes of it becomes of all of them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, Done, QueueFull
from videoserve.types import Appetite, Event, Job, Output

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100, "key_queue_limit": 100}
IDLE = Appetite(idle=True)
OUTPUTS = {"video": Output(sha256="v", bytes=1, media_type="video/mp4")}
RECEIPT = {"job": "<job>", "seed": 2**64 - 1, "seconds": 0.1 + 0.2, "empty": []}
MakeJob = Callable[..., Job]


async def submit(broker: Broker, *jobs: Job, twin: str = "same") -> None:
    for job in jobs:
        await broker.submit([job], twins={job.id: twin}, **ROOMY)


async def statuses(broker: Broker, *ids: str) -> list[str]:
    return [found[1].status if found else "gone" for found in await broker.get_many(ids)]


async def test_all_get_the_video_of_one(broker: Broker, make_job: MakeJob, redis_url: str) -> None:
    hooked = {"webhook_url": "https://example.com/"}
    await submit(broker, make_job("a"), make_job("b", **hooked), make_job("c"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    assert claim.job.id == "a"
    assert await broker.claim("video", "w", IDLE) is None
    await submit(broker, make_job("d"))
    assert await broker.twins("video") == {"waiting": 3, "answered": 0}
    await broker.hold("v", "held")
    await broker.finish("a", claim.fence, OUTPUTS, {"job": "a"}, hold="held", twin_receipt=RECEIPT)
    assert await statuses(broker, *"abcd") == ["completed"] * 4
    assert await broker.twins("video") == {"waiting": 0, "answered": 3}
    for job_id in "bcd":
        found = await broker.get(job_id)
        assert found is not None
        state = found[1]
        assert state.receipt == RECEIPT | {"job": job_id}
        assert (state.outputs, state.progress, state.stage) == (OUTPUTS, 100, "done")
        events = [event async for event in broker.events(job_id, 0)]
        assert [event.kind for event in events] == ["done"]
        assert events[0].data["receipt"] == state.receipt
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        assert [entry["job"] for _, entry in redis.xrange("webhooks")] == ["b"]
        assert not [*redis.scan_iter("twin*")]
    # Each of them keeps the file.
    assert [await broker.delete(job_id) for job_id in "acbd"] == [[], [], [], ["0" * 64, "v"]]


async def test_who_comes_after_the_end_is_computed(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.finish("a", claim.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    await submit(broker, make_job("b"))
    assert await broker.claim("video", "w", IDLE) is not None


@pytest.mark.parametrize("end", ["cancel", "delete", "late"])
async def test_who_leaves_takes_nobody_along(broker: Broker, make_job: MakeJob, end: str) -> None:
    await submit(broker, make_job("a", work_s=5.0), make_job("b", work_s=5.0), make_job("c", priority=1))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    if end == "cancel":
        await broker.cancel("a")
        await broker.finish("a", claim.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    elif end == "delete":
        await broker.delete("a")
    else:
        await broker.fail("a", claim.fence, "deadline_exceeded", "Late.", retry=False)
    assert await statuses(broker, "b", "c") == ["queued", "queued"]
    # The more urgent one is computed now.
    following = await broker.claim("video", "w", IDLE)
    assert following is not None
    assert following.job.id == "c"
    assert await broker.claim("video", "w", IDLE) is None
    await broker.finish("c", following.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    assert await statuses(broker, "b", "c") == ["completed", "completed"]


async def test_a_failure_is_that_of_all(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"), make_job("b"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.fail("a", claim.fence, "numerical_error", "NaN.", retry=False)
    found = await broker.get("b")
    assert found is not None
    assert found[1].error == {"code": "numerical_error", "message": "NaN."}


async def test_a_dead_worker_costs_an_attempt_and_nobody_else_begins(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"), make_job("b"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.fail("a", claim.fence, "worker_error", "It broke.", retry=True)
    again = await broker.claim("video", "v", IDLE)
    assert again is not None
    assert (again.job.id, again.attempt) == ("a", 2)
    assert await broker.claim("video", "v", IDLE) is None


async def test_a_waiting_twin_leaves_alone(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, *map(make_job, "abc"))
    await broker.cancel("b")
    await broker.delete("c")
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.finish("a", claim.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    assert await statuses(broker, *"abc") == ["completed", "failed", "gone"]


async def test_others_and_other_clients_are_computed_by_themselves(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"), make_job("b"))
    await submit(broker, make_job("c"), twin="other")
    await broker.submit([make_job("d")], **ROOMY)
    claims = [await broker.claim("video", "w", IDLE) for _ in range(4)]
    assert [claim.job.id if claim else None for claim in claims] == ["a", "c", "d", None]


async def test_the_computed_one_is_as_urgent_as_those_that_wait(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("z", priority=1)], **ROOMY)
    await submit(broker, make_job("a"), make_job("b", priority=2))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    assert claim.job.id == "a"


async def test_a_deadline_that_passed_meanwhile(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"), make_job("b", deadline=1.0), make_job("c"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.finish("a", claim.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    assert await statuses(broker, *"abc") == ["completed", "failed", "completed"]


async def test_the_place_of_a_twin_is_that_of_the_computed_one(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("1", work_s=7.0)], **ROOMY)
    await submit(broker, make_job("a", work_s=5.0), make_job("b", work_s=5.0))
    rows, _ = await broker.list("t", order="asc")
    assert [(state.queue_position, state.wait_s) for _, state in rows] == [(1, 0.0), (2, 7.0), (2, 7.0)]
    await broker.claim("video", "w", IDLE)
    await broker.claim("video", "w", IDLE)
    async with asyncio.timeout(5):
        found = await broker.get("b")
    assert found is not None
    assert (found[1].status, found[1].queue_position) == ("queued", 1)


async def test_what_is_done_is_completed_at_once(broker: Broker, make_job: MakeJob, redis_url: str) -> None:
    await broker.hold("v", "held")
    await broker.hold("0" * 64, "held")
    job = make_job("a", webhook_url="https://example.com/")
    done = {"a": Done(outputs=OUTPUTS, receipt=RECEIPT)}
    await broker.submit([job, make_job("b")], queue_limit=1, key_queue_limit=1, hold="held", done=done)
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].outputs, found[1].receipt) == ("completed", OUTPUTS, RECEIPT)
    assert found[1].expires_at is not None
    assert [event.kind async for event in broker.events("a", 0)] == ["done"]
    assert await statuses(broker, "b") == ["queued"]
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        assert redis.smembers("ref:v") == {"a"}
        assert redis.smembers(f"ref:{'0' * 64}") == {"a", "b"}
        assert redis.smembers("active:t") == {"b"}
        assert redis.zcard("holds") == 0
        assert [entry["job"] for _, entry in redis.xrange("webhooks")] == ["a"]
    with pytest.raises(QueueFull):
        await broker.submit([make_job("c")], queue_limit=1, key_queue_limit=1)


async def test_events_reach_those_that_wait_while_they_wait(broker: Broker, make_job: MakeJob) -> None:
    await submit(broker, make_job("a"), make_job("b"))
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.record("a", claim.fence, [Event(job_id="a", kind="progress", data={"progress": 5})])

    async def told() -> list[str]:
        return [event.kind async for event in broker.events("b", 0)]

    following = asyncio.create_task(told())
    await asyncio.sleep(0.05)
    await broker.finish("a", claim.fence, OUTPUTS, {}, twin_receipt=RECEIPT)
    assert await asyncio.wait_for(following, 5) == ["done"]
