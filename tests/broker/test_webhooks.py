"""The outbox: a delivery waits until it is settled, whoever dies."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, Delivery
from videoserve.types import Appetite, Job

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
MakeJob = Callable[..., Job]


async def end_jobs(broker: Broker, make_job: MakeJob) -> None:
    """Ends job "a" well and job "b" badly; "c" has no webhook."""
    for name, url in (("a", "https://x.example/hook"), ("b", "https://x.example/hook"), ("c", None)):
        await broker.submit([make_job(name, webhook_url=url)], **ROOMY)
        claim = await broker.claim("video", "w", Appetite(idle=True))
        assert claim is not None
        if name == "b":
            await broker.fail(name, claim.fence, "x", "No.", retry=False)
        else:
            await broker.finish(name, claim.fence, {}, {})


async def outcome(broker: Broker, job_id: str) -> dict[str, object] | None:
    found = await broker.get(job_id)
    assert found is not None
    return found[1].webhook


async def test_an_end_is_delivered_once(broker: Broker, make_job: MakeJob) -> None:
    assert await broker.next_deliveries("d", timeout=0.01) == []
    await end_jobs(broker, make_job)
    taken = await broker.next_deliveries("d")
    assert [(d.job_id, d.event, d.attempt) for d in taken] == [("a", "video.completed", 1), ("b", "video.failed", 1)]
    assert await broker.next_deliveries("other", timeout=0.01) == []
    for delivery in taken * 2:
        await broker.ack(delivery)
    assert (await broker.depth("video"))["webhooks"] == 0
    assert await outcome(broker, "a") == {"delivered": True, "attempts": 1}
    assert await outcome(broker, "c") is None


async def test_what_a_dead_deliverer_took_is_handed_out_again(broker: Broker, make_job: MakeJob) -> None:
    await end_jobs(broker, make_job)
    taken = await broker.next_deliveries("dead")
    assert await broker.next_deliveries("other", timeout=0.01) == []
    assert await broker.next_deliveries("other", timeout=0.01, reclaim_s=0.0) == taken


async def test_retries_wait_and_are_given_up(broker: Broker, make_job: MakeJob) -> None:
    await end_jobs(broker, make_job)
    first, other = await broker.next_deliveries("d")
    await broker.ack(other)
    assert await broker.retry_at(first, time.time() + 1000, "503", max_attempts=3)
    assert await broker.next_deliveries("d", timeout=0.01) == []
    assert (await broker.depth("video"))["webhooks"] == 1
    # A second settlement of the same entry changes nothing.
    assert await broker.retry_at(first, time.time() - 1, "503", max_attempts=3)
    assert await broker.next_deliveries("d", timeout=0.01) == []

    await end_again(broker, make_job)
    attempts = []
    delivery: Delivery | None = (await broker.next_deliveries("d"))[0]
    while delivery:
        attempts.append(delivery.attempt)
        again = await broker.retry_at(delivery, time.time() - 1, "refused", max_attempts=3)
        delivery = (await broker.next_deliveries("d"))[0] if again else None
    assert attempts == [1, 2, 3]
    assert await outcome(broker, "e") == {"delivered": False, "attempts": 3, "error": "refused"}


async def blocked(redis: Redis) -> None:
    while not redis.info("clients")["blocked_clients"]:
        await asyncio.sleep(0.01)


async def test_an_emptied_redis_ends_the_wait(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    waiting = asyncio.create_task(broker.next_deliveries("d", timeout=60))
    with Redis.from_url(redis_url) as redis:
        await blocked(redis)
        redis.flushall()
    assert await waiting == []
    await end_jobs(broker, make_job)
    assert [delivery.job_id for delivery in await broker.next_deliveries("d")] == ["a", "b"]


async def test_the_wait_outlives_a_failover(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    """A server that becomes a replica ends every wait for news."""
    waiting = asyncio.create_task(broker.next_deliveries("d", timeout=60))
    with Redis.from_url(redis_url) as redis:
        await blocked(redis)
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        redis.execute_command("REPLICAOF", "NO", "ONE")
    await end_jobs(broker, make_job)
    # The second job may have ended before the wait began again.
    assert [delivery.job_id for delivery in await waiting] in (["a"], ["a", "b"])


async def end_again(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("e", webhook_url="https://x.example/hook")], **ROOMY)
    await broker.cancel("e")


async def test_consumers_that_are_gone_are_forgotten(
    broker: Broker, redis_url: str, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end_jobs(broker, make_job)
    (first,) = await broker.next_deliveries("gone", count=1)
    await broker.ack(first)
    taken = await broker.next_deliveries("died")
    with Redis.from_url(redis_url, decode_responses=True) as redis:

        def known() -> set[str]:
            return {consumer["name"] for consumer in redis.xinfo_consumers("webhooks", "deliverers")}

        assert known() == {"died", "gone"}
        monkeypatch.setattr("videoserve.broker.webhooks.FORGET_S", 0.05)
        await asyncio.sleep(0.1)
        assert await broker.next_deliveries("here", timeout=0.01) == []
        # What the dead one took is still to be handed out again.
        assert known() == {"died"}
    assert await broker.next_deliveries("here", timeout=0.01, reclaim_s=0.05) == taken


async def test_a_secret_is_made_once_and_replaced_on_demand(broker: Broker) -> None:
    secret = await broker.webhook_secret("t")
    assert secret.startswith("whsec_")
    assert await broker.webhook_secret("t") == secret
    assert await broker.webhook_secret("u") != secret
    assert await broker.replace_webhook_secret("t") != secret
