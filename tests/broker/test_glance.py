"""Reading from memory: cheap, and never older than the last change for longer than a blink."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from videoserve.broker import Broker, glance
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

    async def get_many(*told: object) -> None:
        raise AssertionError("Redis was asked.")

    monkeypatch.setattr(broker, "get_many", get_many)
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
    real, held = broker.get_many, asyncio.Event()

    async def slow(job_ids: Sequence[str]) -> object:
        answer = await real(job_ids)
        await held.wait()
        return answer

    monkeypatch.setattr(broker, "get_many", slow)
    glance = asyncio.create_task(broker.glance("a"))
    await asyncio.sleep(0.05)
    await broker.claim("video", "w", IDLE)
    await asyncio.sleep(0.05)
    held.set()
    await glance
    found = await broker.glance("a")
    assert found is not None
    assert found[1].status == "in_progress"


async def test_places_of_waiting_jobs_are_renewed(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glance, "BEAT_S", 0.05)
    await broker.submit([make_job(job_id, created_at=float(number)) for number, job_id in enumerate("abc")], **ROOMY)
    await hear(broker)
    for place, job_id in enumerate("abc", 1):
        found = await broker.glance(job_id)
        assert found is not None
        assert found[1].queue_position == place
    # Reads of the job itself are not what renews a place.
    monkeypatch.setattr(broker, "get_many", None)
    await broker.claim("video", "w", IDLE)
    async with asyncio.timeout(5):
        while (found := await broker.glance("c")) is None or found[1].queue_position != 2:
            await asyncio.sleep(0.01)


async def test_nothing_is_shown_without_a_sign_of_life(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glance, "BEAT_S", 0.05)
    monkeypatch.setattr(glance, "ALIVE_S", 0.5)
    await broker.submit([make_job("a")], **ROOMY)
    await hear(broker)
    await broker.glance("a")
    reads = 0
    real = broker.get_many

    async def counted(job_ids: Sequence[str]) -> object:
        nonlocal reads
        reads += 1
        return await real(job_ids)

    monkeypatch.setattr(broker, "get_many", counted)
    await asyncio.sleep(0.8)
    await broker.glance("a")
    assert reads == 0
    # As if nothing came over the wire any more.
    broker._heard_at -= 10
    await broker.glance("a")
    assert reads == 1


async def test_many_at_once_are_one_call(broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"job{number}" for number in range(300)]
    await broker.submit([make_job(job_id, created_at=float(n)) for n, job_id in enumerate(ids)], **ROOMY)
    await hear(broker)
    batches = []
    real = broker.get_many

    async def counted(job_ids: Sequence[str]) -> object:
        batches.append(len(job_ids))
        return await real(job_ids)

    monkeypatch.setattr(broker, "get_many", counted)
    found = await asyncio.gather(*(broker.glance(job_id) for job_id in [*ids, "nobody", *ids]))
    assert [row and row[1].queue_position for row in found] == [*range(1, 301), None, *range(1, 301)]
    assert sum(batches) == 301
    assert len(batches) <= 2


async def test_a_reading_that_breaks_is_told_to_all_who_wait(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.submit([make_job("a")], **ROOMY)

    async def get_many(*told: object) -> None:
        raise RuntimeError("A record cannot be read.")

    with monkeypatch.context() as broken:
        broken.setattr(broker, "get_many", get_many)
        async with asyncio.timeout(5):
            found = await asyncio.gather(*(broker.glance("a") for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["A record cannot be read."] * 3
    assert await broker.glance("a") == await broker.get("a")


async def test_a_broker_that_may_not_listen_says_so_and_reads_all_the_same(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.submit([make_job("a")], **ROOMY)

    def forbidden() -> None:
        raise NoPermissionError("this user may not subscribe")

    with monkeypatch.context() as patch:
        patch.setattr(broker._link.waiting, "pubsub", forbidden)
        patch.setattr(glance, "DEAF_S", 0.01)
        assert await broker.glance("a") == await broker.get("a")
        await asyncio.sleep(0.05)
        assert "changes of jobs are not heard" in caplog.text
    await hear(broker)
