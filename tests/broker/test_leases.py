"""What a worker asks: claims by appetite, fences, expiry, attempts, release."""

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, Claim
from videoserve.broker.keys import KEYS
from videoserve.errors import FenceLost
from videoserve.janitor import watch_leases
from videoserve.types import Appetite, Event, Job, Output, rank

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]
Lapse = Callable[[], None]
VIDEO = {"video": Output(sha256="v", bytes=1, media_type="video/mp4")}


@pytest.fixture
def lapse(redis_url: str) -> Lapse:
    """lapse(): as if nobody had renewed a lease for a minute. To wait for short ones asks of a machine to be quick."""

    def run_out() -> None:
        leases = KEYS["leases"] + "video"
        with Redis.from_url(redis_url) as redis:
            for job_id, end in redis.zrange(leases, 0, -1, withscores=True):
                redis.zadd(leases, {job_id: end - 60})

    return run_out


async def claimed(broker: Broker, appetite: Appetite = IDLE, worker: str = "w") -> Claim:
    claim = await broker.claim("video", worker, appetite)
    assert claim is not None
    return claim


def checkpoint(job_id: str, sha: str) -> Event:
    return Event(job_id=job_id, kind="checkpoint", data={"sha256": sha, "stage": "denoise", "step": 3})


async def test_the_order_of_claims_is_that_of_rank(broker: Broker, make_job: MakeJob) -> None:
    chance = random.Random(5)
    jobs = [
        make_job(f"{i}", created_at=1000 + chance.uniform(0, 300), priority=chance.randint(-2, 5)) for i in range(40)
    ]
    for job in jobs:
        await broker.submit([job], **ROOMY)
    ranked = sorted(jobs, key=lambda job: rank(job.created_at, job.priority, 60.0))
    assert [(await claimed(broker)).job.id for _ in jobs] == [job.id for job in ranked]
    assert await broker.claim("video", "w", IDLE) is None


async def test_a_claim_and_its_end(broker: Broker, make_job: MakeJob) -> None:
    job = make_job("a")
    await broker.submit([job], **ROOMY)
    assert await broker.claim("chat", "w", IDLE) is None
    claim = await claimed(broker)
    assert claim == Claim(job=job, fence=claim.fence, attempt=1, checkpoint=None)
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].worker, found[1].fence) == ("in_progress", "w", claim.fence)
    await broker.record("a", claim.fence, [checkpoint("a", "c")])
    assert await broker.finish("a", claim.fence, VIDEO, {"steps": 3}) == ["c"]
    found = await broker.get("a")
    assert found is not None
    state = found[1]
    assert (state.status, state.stage, state.progress, state.fence) == ("completed", "done", 100, 0)
    assert (state.outputs, state.receipt, state.checkpoint) == (VIDEO, {"steps": 3}, None)
    assert state.started_at is not None
    assert state.completed_at is not None
    assert state.expires_at == pytest.approx(state.completed_at + 3600)
    assert await broker.referenced(["v", "c"]) == {"v"}


async def test_a_claimed_job_is_in_a_stage_that_runs(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)

    async def stage() -> str:
        found = await broker.get("a")
        assert found is not None
        return found[1].stage

    claim = await claimed(broker)
    assert await stage() == "encode"
    await broker.record("a", claim.fence, [checkpoint("a", "c")])
    await broker.release("a", claim.fence)
    assert await stage() == "queued"
    await claimed(broker)
    assert await stage() == "denoise"


async def test_a_busy_engine_takes_the_urgent_first_then_its_own_shape(broker: Broker, make_job: MakeJob) -> None:
    for name, shape, created in (("a", "x", 10.0), ("b", "y", 20.0), ("c", "x", 30.0), ("d", "y", 5.0)):
        await broker.submit([make_job(name, plan={"batch_key": shape}, created_at=created)], **ROOMY)
    assert await broker.claim("video", "w", Appetite(idle=False)) is None
    assert await broker.claim("video", "w", Appetite(idle=False, batch_key="z", before=5.0)) is None
    assert (await claimed(broker, Appetite(idle=False, batch_key="y", before=15.0))).job.id == "d"
    assert (await claimed(broker, Appetite(idle=False, batch_key="y"))).job.id == "b"
    assert (await claimed(broker, Appetite(idle=False, before=30.0))).job.id == "a"
    assert await broker.claim("video", "w", Appetite(idle=False, before=30.0)) is None
    assert (await claimed(broker, Appetite(idle=False, batch_key="x"))).job.id == "c"


async def test_a_client_at_its_concurrency_limit_is_passed_over(broker: Broker, make_job: MakeJob) -> None:
    for i in range(150):
        await broker.submit([make_job(f"{i}", created_at=float(i))], key_concurrency=1, **ROOMY)
    await broker.submit([make_job("u", tenant="u", created_at=999.0)], **ROOMY)
    first = await claimed(broker)
    assert first.job.id == "0"
    assert (await claimed(broker)).job.id == "u"
    assert await broker.claim("video", "w", IDLE) is None
    await broker.finish("0", first.fence, {}, {})
    assert (await claimed(broker)).job.id == "1"


async def test_every_late_call_is_refused_by_the_fence(broker: Broker, make_job: MakeJob, lapse: Lapse) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    late = await claimed(broker, worker="stopped")
    await broker.record("a", late.fence, [checkpoint("a", "c")])
    lapse()
    again = await claimed(broker, worker="other")
    assert again.job.id == "a"
    assert again.fence > late.fence
    assert (again.attempt, again.checkpoint) == (2, {"sha256": "c", "stage": "denoise", "step": 3})
    before = await broker.get("a")
    for call in (
        broker.renew("a", late.fence),
        broker.record("a", late.fence, [checkpoint("a", "late")]),
        broker.finish("a", late.fence, VIDEO, {}),
        broker.fail("a", late.fence, "x", "Late.", retry=True),
        broker.release("a", late.fence),
    ):
        with pytest.raises(FenceLost):
            await call
    assert await broker.get("a") == before
    assert before is not None
    assert [(r["attempt"], r["worker"]) for r in before[1].reasons] == [(1, "stopped")]
    await broker.finish("a", again.fence, VIDEO, {})


async def test_a_lease_that_ran_out_is_good_while_nobody_else_wants_the_job(
    broker: Broker, make_job: MakeJob, lapse: Lapse
) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await claimed(broker)
    lapse()
    assert await broker.renew("a", claim.fence) is False
    assert await broker.claim("video", "other", IDLE) is None


async def test_attempts_run_out_and_their_reasons_stay(broker: Broker, make_job: MakeJob, lapse: Lapse) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await claimed(broker, worker="w1")
    await broker.fail("a", claim.fence, "device_lost", "The GPU fell off the bus.", retry=True)
    await claimed(broker, worker="w2")
    lapse()
    claim = await claimed(broker, worker="w3")
    assert claim.attempt == 3
    await broker.record("a", claim.fence, [checkpoint("a", "c")])
    lapse()
    assert await broker.claim("video", "w4", IDLE) is None
    found = await broker.get("a")
    assert found is not None
    state = found[1]
    assert state.status == "failed"
    assert state.error is not None
    assert state.error["code"] == "attempts_exhausted"
    assert "Attempt 3 of 3" in state.error["message"]
    assert [(r["attempt"], r["worker"], r["sentence"]) for r in state.reasons] == [
        (1, "w1", "The GPU fell off the bus."),
        (2, "w2", "Worker w2 stopped renewing its lease."),
        (3, "w3", "Worker w3 stopped renewing its lease."),
    ]
    times = [r["at"] for r in state.reasons]
    assert times == sorted(times)
    # The worker that could have deleted the checkpoint is gone: the janitor hears of it.
    assert await broker.expire() == [("a", ["c"])]
    assert await broker.expire() == []


async def test_a_lost_job_that_was_cancelled_does_not_run_again(
    broker: Broker, make_job: MakeJob, lapse: Lapse
) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await claimed(broker)
    await broker.cancel("a")
    lapse()
    await broker.expire()
    found = await broker.get("a")
    assert found is not None
    assert found[1].error is not None
    assert (found[1].status, found[1].error["code"]) == ("failed", "cancelled")


async def test_what_a_dead_worker_held_is_queued_within_seconds_while_nobody_claims(
    broker: Broker, make_job: MakeJob, lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve.janitor.LEASES_EVERY_S", 0.05)
    await broker.submit([make_job("a"), make_job("b")], **ROOMY)
    first = await claimed(broker)
    lapse()
    watching = asyncio.create_task(watch_leases(broker, 0.05))
    try:
        async with asyncio.timeout(60):
            while (found := await broker.get("a")) and found[1].status != "queued":
                await asyncio.sleep(0.02)
    finally:
        watching.cancel()
    with pytest.raises(FenceLost):
        await broker.renew("a", first.fence)
    assert await broker.reap() == []
    again = await claimed(broker)
    assert (again.job.id, again.attempt) == ("a", 2)


async def test_a_worker_that_lives_may_still_renew_a_lease_that_ran_out_until_another_claims(
    broker: Broker, make_job: MakeJob, lapse: Lapse
) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await broker.heartbeat("slow", {"kind": "video", "ready": True}, ttl=30)
    slow = await claimed(broker, worker="slow")
    lapse()
    assert await broker.reap() == []
    assert not await broker.renew("a", slow.fence)
    lapse()
    assert (await claimed(broker)).attempt == 2
    with pytest.raises(FenceLost):
        await broker.renew("a", slow.fence)


async def test_attempts_that_end_by_reaping_are_counted(broker: Broker, make_job: MakeJob, lapse: Lapse) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    for expected in (["a"], ["a"], []):
        await claimed(broker)
        assert await broker.reap() == []
        lapse()
        assert await broker.reap() == expected
    found = await broker.get("a")
    assert found is not None
    assert found[1].error is not None
    assert found[1].error["code"] == "attempts_exhausted"


async def test_the_janitor_requeues_what_a_dead_worker_held(broker: Broker, make_job: MakeJob, lapse: Lapse) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    await claimed(broker)
    lapse()
    await broker.expire()
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].queue_position) == ("queued", 1)


async def test_expired_leases_come_before_the_queue(broker: Broker, make_job: MakeJob, lapse: Lapse) -> None:
    await broker.submit([make_job("a", created_at=2000.0)], **ROOMY)
    await claimed(broker)
    await broker.submit([make_job("b", created_at=1.0)], **ROOMY)
    lapse()
    assert (await claimed(broker)).job.id == "a"


async def test_release_gives_the_job_back_unharmed(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    for _ in range(5):
        claim = await claimed(broker)
        assert claim.attempt == 1
        await broker.record("a", claim.fence, [checkpoint("a", "c")])
        assert await broker.release("a", claim.fence) == []
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].reasons, found[1].queue_position) == ("queued", (), 1)
    assert (await claimed(broker)).checkpoint == {"sha256": "c", "stage": "denoise", "step": 3}


async def test_record_takes_over_what_the_events_tell(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await claimed(broker)
    told = [
        Event(job_id="a", kind="stage", data={"stage": "denoise"}),
        Event(job_id="a", kind="progress", data={"progress": 40, "step": 4, "steps": 10, "eta_s": 2.5}),
        Event(job_id="a", kind="adjusted", data={"sentence": "1 became 2."}),
        checkpoint("a", "c1"),
    ]
    again = Event(job_id="a", kind="adjusted", data={"sentence": "2 became 3."})
    assert await broker.record("a", claim.fence, told) == []
    assert await broker.record("a", claim.fence, [checkpoint("a", "c1")]) == []
    assert await broker.record("a", claim.fence, [again, checkpoint("a", "c2")]) == ["c1"]
    found = await broker.get("a")
    assert found is not None
    state = found[1]
    assert (state.stage, state.progress, state.eta_s, state.seq) == ("denoise", 40, 2.5, 4)
    assert state.adjustments == ("1 became 2.", "2 became 3.")
    assert state.checkpoint == {"sha256": "c2", "stage": "denoise", "step": 3}
    with pytest.raises(ValueError, match="call finish or fail"):
        await broker.record("a", claim.fence, [Event(job_id="a", kind="done", data={})])


async def test_a_job_past_its_deadline_is_not_begun(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a", deadline=1001.0)], **ROOMY)
    # More of them than a claim looks at in one go.
    await broker.submit([make_job(f"late {i}", deadline=1001.0) for i in range(150)], **ROOMY)
    await broker.submit([make_job("b", created_at=1001.0, deadline=4e9)], **ROOMY)
    assert (await claimed(broker)).job.id == "b"
    found = await broker.get("a")
    assert found is not None
    assert found[1].error is not None
    assert found[1].error["code"] == "deadline_exceeded"


async def test_two_claimers_share_a_hundred_jobs(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    await broker.submit([make_job(f"{i}") for i in range(100)], **ROOMY)
    rival = Broker.connect(redis_url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)

    async def take_all(taker: Broker) -> list[Claim]:
        taken = []
        while claim := await taker.claim("video", "w", IDLE):
            taken.append(claim)
        return taken

    shares = await asyncio.gather(*(take_all(taker) for taker in (broker, rival, broker, rival)))
    await rival.close()
    claims = list(itertools.chain(*shares))
    assert sorted(int(claim.job.id) for claim in claims) == list(range(100))
    assert len({claim.fence for claim in claims}) == 100
    assert all(shares)


async def test_a_submit_wakes_who_waits_for_work(broker: Broker, make_job: MakeJob) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await broker.wait_for_work("video", 0.05)
    assert loop.time() - start >= 0.05
    waiters = [asyncio.create_task(broker.wait_for_work("video", 30)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await broker.submit([make_job("a")], **ROOMY)
    await asyncio.wait_for(asyncio.gather(*waiters), 5)
    # Work that came between a claim and the wait is not slept over.
    await broker.submit([make_job("b")], **ROOMY)
    await asyncio.wait_for(broker.wait_for_work("video", 30), 5)


async def test_progress_never_falls(broker: Broker, make_job: MakeJob) -> None:
    def told(progress: int) -> Event:
        return Event(job_id="a", kind="progress", data={"progress": progress, "step": 1, "steps": 9, "eta_s": None})

    async def progress() -> int:
        found = await broker.get("a")
        assert found is not None
        return found[1].progress

    await broker.submit([make_job("a")], **ROOMY)
    claim = await claimed(broker)
    await broker.record("a", claim.fence, [told(9), told(60)])
    await broker.fail("a", claim.fence, "worker_error", "The worker broke.", retry=True)
    again = await claimed(broker)
    await broker.record("a", again.fence, [told(30), told(59)])
    await broker.record("a", again.fence, [told(10)])
    assert await progress() == 60
    await broker.record("a", again.fence, [told(61)])
    assert await progress() == 61
    await broker.finish("a", again.fence, VIDEO, {})
    events = [event async for event in broker.events("a") if event.kind == "progress"]
    assert [event.data["progress"] for event in events] == [9, 60, 60, 60, 60, 61]
    assert all(event.data | {"progress": 0} == told(0).data for event in events)


async def test_an_ended_chat_is_kept_for_ten_minutes_whoever_ends_it_and_a_video_as_long_as_is_said(
    broker: Broker, make_job: MakeJob
) -> None:
    await broker.submit([make_job("a"), make_job("b", kind="chat")], **ROOMY)
    for name in ("a", "b"):
        await broker.cancel(name)
    kept = {job.id: state.expires_at - state.completed_at for job, state in [await broker.get(name) for name in "ab"]}
    assert kept == {"a": pytest.approx(3600), "b": pytest.approx(600)}
