"""When the turn of a waiting job comes, and which deadlines are refused because of it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, glance
from videoserve.broker.state import Turn
from videoserve.errors import DeadlineUnreachable
from videoserve.types import Appetite, Event, Job

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 1000, "key_queue_limit": 1000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]


async def queue(broker: Broker, make_job: MakeJob, **works: float | None) -> None:
    """Jobs of these seconds of work, the first one first."""
    for number, (job_id, work_s) in enumerate(works.items()):
        await broker.submit([make_job(job_id, created_at=1000.0 + number, work_s=work_s)], **ROOMY)


async def waits(broker: Broker, job_ids: str) -> list[float | None]:
    """Seconds until the turn of each, the same by every way to read them."""
    read = []
    listed = {job.id: state for job, state in (await broker.list("t", limit=100))[0]}
    for job_id in job_ids:
        found = await broker.get(job_id)
        broker._forget(job_id)
        glanced = await broker.glance(job_id)
        assert found is not None
        assert found == glanced == (found[0], listed[job_id])
        read.append(found[1].wait_s)
    return read


async def start(broker: Broker, worker: str, eta_s: float | None = None) -> str:
    claim = await broker.claim("video", worker, IDLE)
    assert claim is not None
    if eta_s is not None:
        data = {"progress": 1, "step": 1, "steps": 9, "eta_s": eta_s}
        await broker.record(claim.job.id, claim.fence, [Event(job_id=claim.job.id, kind="progress", data=data)])
    return claim.job.id


async def alive(broker: Broker, *workers: str, ready: bool = True, ttl: float = 60) -> None:
    for worker in workers:
        await broker.heartbeat(worker, {"kind": "video", "ready": ready}, ttl)


async def test_the_work_ahead_is_what_a_job_waits_for(broker: Broker, make_job: MakeJob) -> None:
    await alive(broker, "w")
    await queue(broker, make_job, a=100.0, b=7.0, c=0.5)
    assert await waits(broker, "abc") == [0.0, 100.0, 107.0]
    await start(broker, "w")
    assert await waits(broker, "bc") == [100.0, 107.0]


async def test_of_a_running_job_only_the_rest_counts(broker: Broker, make_job: MakeJob) -> None:
    await alive(broker, "w")
    await queue(broker, make_job, a=100.0, b=7.0, c=0.5)
    await start(broker, "w", eta_s=12.5)
    assert await waits(broker, "bc") == [12.5, 19.5]


async def test_priority_counts(broker: Broker, make_job: MakeJob) -> None:
    await alive(broker, "w")
    await queue(broker, make_job, a=100.0, b=7.0)
    await broker.submit([make_job("c", created_at=1002.0, priority=1, work_s=3.0)], **ROOMY)
    assert await waits(broker, "cab") == [0.0, 3.0, 103.0]


async def test_workers_share_the_queue(broker: Broker, make_job: MakeJob) -> None:
    await alive(broker, "v", "w")
    await queue(broker, make_job, a=10.0, b=4.0, c=3.0, d=1.0, e=1.0)
    # a and b at once, c after b at 4, d after c at 7, e after d at 8.
    assert await waits(broker, "abcde") == [0.0, 0.0, 4.0, 7.0, 8.0]
    await start(broker, "v", eta_s=9.0)
    # The other worker is idle.
    assert await waits(broker, "bcd") == [0.0, 4.0, 7.0]
    await start(broker, "w", eta_s=2.0)
    assert await waits(broker, "cde") == [2.0, 5.0, 6.0]


async def test_only_workers_that_live_and_take_jobs_count(broker: Broker, make_job: MakeJob, redis_url: str) -> None:
    await queue(broker, make_job, a=10.0, b=4.0, c=3.0)
    assert await waits(broker, "abc") == [0.0, 10.0, 14.0]
    await alive(broker, "w1", "w2")
    await broker.heartbeat("api-1", {"kind": "api", "ready": True}, 60)
    assert await waits(broker, "abc") == [0.0, 0.0, 4.0]
    await alive(broker, "w1", ready=False)
    assert await waits(broker, "abc") == [0.0, 10.0, 14.0]
    await alive(broker, "w1")
    await broker.farewell("w2")
    assert await waits(broker, "abc") == [0.0, 10.0, 14.0]
    with Redis.from_url(redis_url) as redis:
        assert redis.smembers("able:video") == {b"w1"}


async def test_the_job_of_a_worker_that_died_is_another_ones_work(broker: Broker, make_job: MakeJob) -> None:
    await alive(broker, "w")
    await queue(broker, make_job, a=10.0, b=4.0)
    await start(broker, "dead", eta_s=6.0)
    assert await waits(broker, "b") == [6.0]


async def test_what_was_never_measured(broker: Broker, make_job: MakeJob) -> None:
    await queue(broker, make_job, a=10.0, b=None, c=4.0, d=1.0)
    assert await waits(broker, "abcd") == [0.0, 10.0, None, None]
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.finish("a", claim.fence, {}, {})
    # What a took here is now the average.
    waited = await waits(broker, "bcd")
    assert waited[0] == 0.0
    assert waited[1] is not None
    assert 0 < waited[1] < 10
    assert waited[2] == pytest.approx(waited[1] + 4.0)


@pytest.mark.parametrize("end", ["cancel", "delete", "finish"])
async def test_what_has_ended_is_not_waited_for(broker: Broker, make_job: MakeJob, redis_url: str, end: str) -> None:
    await queue(broker, make_job, a=10.0, b=4.0, c=1.0)
    if end == "finish":
        claim = await broker.claim("video", "w", IDLE)
        assert claim is not None
        await broker.finish("a", claim.fence, {}, {})
    else:
        await getattr(broker, end)("a")
    assert await waits(broker, "bc") == [0.0, 4.0]
    with Redis.from_url(redis_url) as redis:
        assert redis.hkeys("work:video") == [b"b", b"c"]


async def test_a_drained_job_waits_again(broker: Broker, make_job: MakeJob) -> None:
    await queue(broker, make_job, a=10.0, b=4.0)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.release("a", claim.fence)
    assert await waits(broker, "ab") == [0.0, 10.0]


async def test_a_deadline_behind_the_queue_is_refused(broker: Broker, make_job: MakeJob, now: float) -> None:
    await queue(broker, make_job, a=100.0, b=7.0)
    late = make_job("c", created_at=now, deadline=now + 60.0, work_s=5.0)
    with pytest.raises(DeadlineUnreachable) as refusal:
        await broker.submit([late], **ROOMY)
    assert refusal.value.message == (
        "deadline_s is 60, but this video takes about 5.0 seconds here, after about 107.0 for what is ahead of it."
    )
    assert (refusal.value.status, refusal.value.param) == (422, "deadline_s")
    assert await broker.get("c") is None
    # Enough time, a turn before the others, or a second worker: each alone makes it possible.
    await broker.submit([make_job("d", created_at=now, deadline=now + 120.0, work_s=5.0)], **ROOMY)
    first = make_job("e", created_at=now, deadline=now + 60.0, work_s=5.0, priority=100)
    await broker.submit([first.from_dict(first.to_dict() | {"created_at": 999.0})], **ROOMY)
    await alive(broker, "v", "w")
    await broker.submit([late], **ROOMY)


async def test_a_deadline_counts_the_siblings_before_it(broker: Broker, make_job: MakeJob, now: float) -> None:
    siblings = [make_job(i, created_at=now + n * 1e-6, deadline=now + 12.0, work_s=5.0) for n, i in enumerate("abc")]
    with pytest.raises(DeadlineUnreachable, match=r"takes about 5\.0 seconds here, after about 10\.0"):
        await broker.submit(siblings, **ROOMY)
    assert (await broker.depth("video"))["queued"] == 0
    await broker.submit(siblings[:2], **ROOMY)


async def test_a_deadline_is_taken_where_nothing_was_measured(broker: Broker, make_job: MakeJob, now: float) -> None:
    await queue(broker, make_job, a=100.0, b=None)
    await broker.submit([make_job("c", created_at=now, deadline=now + 1.0, work_s=5.0)], **ROOMY)
    await broker.delete("b")
    await broker.submit([make_job("d", created_at=now, deadline=now + 1.0)], **ROOMY)


async def test_a_submission_repeated_with_its_key_is_not_refused(broker: Broker, make_job: MakeJob, now: float) -> None:
    job = make_job("a", created_at=now, deadline=now + 6.0, work_s=5.0)
    await broker.submit([job], idempotency=("key", "body"), **ROOMY)
    again = make_job("b", created_at=now, deadline=now + 6.0, work_s=5.0)
    assert await broker.submit([again], idempotency=("key", "body"), **ROOMY) == [job]


async def test_a_glance_keeps_a_wait_that_is_about_right(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glance, "BEAT_S", 3600.0)
    await queue(broker, make_job, a=100.0, b=7.0)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None

    async def seen(eta_s: float) -> float | None:
        data = {"progress": 1, "step": 1, "steps": 9, "eta_s": eta_s}
        await broker.record("a", claim.fence, [Event(job_id="a", kind="progress", data=data)])
        await broker.glance("b")
        await broker._renew_places(broker._seen)
        found = await broker.glance("b")
        return found[1].wait_s if found else None

    while not broker._listening:
        await broker.glance("b")
    assert [await seen(eta_s) for eta_s in (100.0, 96.0, 90.0, 86.0, 40.0)] == [100.0, 100.0, 90.0, 90.0, 40.0]


async def test_a_job_claimed_while_it_is_read_is_read_again(
    broker: Broker, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue(broker, make_job, a=1.0)
    real = broker.turns

    async def turns(kind: str, job_ids: Sequence[str]) -> list[Turn | None]:
        await start(broker, "w")
        return await real(kind, job_ids)

    monkeypatch.setattr(broker, "turns", turns)
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].queue_position) == ("in_progress", None)


@pytest.fixture
def now(redis_url: str) -> float:
    """The clock of the Redis server, unix seconds."""
    with Redis.from_url(redis_url) as redis:
        seconds, micros = redis.time()
        return float(seconds + micros / 1e6)
