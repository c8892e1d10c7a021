"""Reading from memory: cheap, and never older than the last change for longer than a blink."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from videoserve.broker import Broker
from videoserve.types import Appetite, Event, Job

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]


async def hear(broker: Broker) -> None:
    """Waits until the broker is told of changes."""
    await broker.glance("nobody")
    async with asyncio.timeout(5):
        while not broker._listening:
            await asyncio.sleep(0.001)


async def test_an_unchanged_job_costs_no_call(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await hear(broker)
    first = await broker.glance("a", "t")
    assert first == await broker.get("a")

    async def hmget(*told: object) -> None:
        raise AssertionError("Redis was asked.")

    monkeypatch.setattr(broker._link.short, "hmget", hmget)
    assert await broker.glance("a", "t") == first
    assert await broker.glance("a") == first
    assert await broker.glance("a", "other") is None


async def test_every_change_shows(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    await hear(broker)
    elsewhere = Broker.connect(redis_url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
    await elsewhere.submit([make_job("a"), make_job("b"), make_job("c", webhook_url="https://x.example/")], **ROOMY)

    async def same() -> None:
        # Told over another connection: give the message a moment, then memory and store must agree.
        await asyncio.sleep(0.05)
        for job_id in "abc":
            assert await broker.glance(job_id) == await elsewhere.get(job_id)

    await same()
    claims = [await elsewhere.claim("video", "w", IDLE) for _ in "abc"]
    a, b, c = (claim.fence for claim in claims if claim)
    await same()
    told = [Event(job_id="a", kind="progress", data={"progress": 5, "step": 1, "steps": 20, "eta_s": 1.5})]
    await elsewhere.record("a", a, told)
    await elsewhere.cancel("b")
    await elsewhere.finish("c", c, {}, {})
    await same()
    await elsewhere.release("a", a)
    await elsewhere.fail("b", b, "x", "No.", retry=False)
    await elsewhere.ack((await elsewhere.next_deliveries("d"))[0])
    await same()
    await elsewhere.delete("a")
    await same()
    assert await broker.glance("a") is None
    await elsewhere.close()


async def test_who_cancels_or_deletes_sees_it_at_once(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await hear(broker)
    await broker.glance("a")
    cancelled = await broker.cancel("a")
    assert await broker.glance("a") == cancelled
    await broker.delete("a")
    assert await broker.glance("a") is None


async def test_a_reading_that_a_change_overtook_is_not_kept(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await hear(broker)
    real, held = broker._link.short.hmget, asyncio.Event()

    async def slow(*told: object) -> object:
        answer = await real(*told)  # type: ignore[arg-type]
        await held.wait()
        return answer

    monkeypatch.setattr(broker._link.short, "hmget", slow)
    glance = asyncio.create_task(broker.glance("a"))
    await asyncio.sleep(0.05)
    await broker.claim("video", "w", IDLE)
    await asyncio.sleep(0.05)
    held.set()
    await glance
    found = await broker.glance("a")
    assert found is not None
    assert found[1].status == "in_progress"
