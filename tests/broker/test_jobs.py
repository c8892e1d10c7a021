"""What the API asks of jobs: submit, read, list, cancel, delete."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, QueueFull
from videoserve.errors import Conflict, NotFound
from videoserve.types import Appetite, Event, Job, Output

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
IDLE = Appetite(idle=True)
MakeJob = Callable[..., Job]


async def test_a_submitted_job_reads_back_exactly(broker: Broker, make_job: MakeJob) -> None:
    job = make_job(
        "a",
        plan={"image": "i", "batch_key": "k", "seed": 2**64 - 1, "boundary": 0.1 + 0.2, "prompt": 'é/"\\ \n 🎈'},
        metadata={"empty": [], "none": None},
        siblings=["b"],
        created_at=1_764_513_786.123456,
    )
    assert await broker.submit([job], **ROOMY) == [job]
    found = await broker.get("a", "t")
    assert found is not None
    assert found[0] == job
    assert found[1].status == found[1].stage == "queued"
    assert found[1].queue_position == 1
    assert await broker.get("a", "other") is None
    assert await broker.get("b") is None
    assert await broker.get_many(["b", "a"]) == [None, (job, replace(found[1], queue_position=None, wait_s=None))]


async def test_idempotency_key(broker: Broker, make_job: MakeJob) -> None:
    pair = [make_job("a"), make_job("b")]
    await broker.submit(pair, idempotency=("key", "body"), **ROOMY)
    assert await broker.submit([make_job("c"), make_job("d")], idempotency=("key", "body"), **ROOMY) == pair
    with pytest.raises(Conflict) as refusal:
        await broker.submit([make_job("e")], idempotency=("key", "other body"), **ROOMY)
    assert refusal.value.code == "idempotency_conflict"
    other = make_job("f", tenant="u")
    assert await broker.submit([other], idempotency=("key", "third body"), **ROOMY) == [other]
    assert (await broker.depth("video"))["queued"] == 3
    await broker.delete("a")
    assert await broker.submit([make_job("g")], idempotency=("key", "body"), **ROOMY) == pair[1:]
    await broker.delete("b")
    with pytest.raises(Conflict, match="deleted"):
        await broker.submit([make_job("g")], idempotency=("key", "body"), **ROOMY)


async def test_limits_take_all_or_none(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], queue_limit=2, key_queue_limit=9)
    with pytest.raises(QueueFull, match="the limit is 2") as full:
        await broker.submit([make_job("b"), make_job("c")], queue_limit=2, key_queue_limit=9)
    assert (full.value.status, full.value.code, full.value.retry_after) == (429, "queue_full", 1)
    assert await broker.get("b") is None
    await broker.claim("video", "w", IDLE)
    # A running job leaves the queue, yet counts for its client.
    with pytest.raises(QueueFull, match="of your jobs"):
        await broker.submit([make_job("b"), make_job("c")], queue_limit=2, key_queue_limit=2)
    await broker.submit([make_job("b"), make_job("c")], queue_limit=2, key_queue_limit=3)


async def test_submitting_the_same_ids_again_is_harmless(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], queue_limit=1, key_queue_limit=1)
    await broker.submit([make_job("a")], queue_limit=1, key_queue_limit=1)
    assert (await broker.depth("video"))["queued"] == 1


async def test_cancel(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a"), make_job("b")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    queued = [await broker.cancel("b", "t") for _ in range(2)]
    assert queued[0] == queued[1]
    assert queued[0][1].status == "failed"
    assert queued[0][1].error == {"code": "cancelled", "message": "The job was cancelled."}
    running = [(await broker.cancel("a", "t"))[1] for _ in range(2)]
    assert running[0] == running[1]
    assert (running[0].status, running[0].cancelling) == ("in_progress", True)
    assert await broker.cancelled(["a", "b", "never"]) == ["a", "never"]
    assert await broker.renew("a", claim.fence)
    await broker.fail("a", claim.fence, "anything", "Stopped.", retry=True)
    state = (await broker.cancel("a", "t"))[1]
    assert (state.status, state.cancelling) == ("failed", False)
    assert state.error is not None
    assert state.error["code"] == "cancelled"
    for job_id, tenant in (("never", "t"), ("a", "other")):
        with pytest.raises(NotFound):
            await broker.cancel(job_id, tenant)


async def test_cancel_after_the_end_names_the_state(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.finish("a", claim.fence, {}, {})
    with pytest.raises(Conflict, match="is completed"):
        await broker.cancel("a", "t")


async def test_a_result_that_comes_after_a_cancel_is_dropped(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a")], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    await broker.cancel("a", "t")
    freed = await broker.finish("a", claim.fence, {"video": Output(sha256="v", bytes=1, media_type="video/mp4")}, {})
    assert freed == ["v"]
    found = await broker.get("a")
    assert found is not None
    assert (found[1].status, found[1].outputs) == ("failed", {})


async def test_delete_frees_what_no_other_job_needs(broker: Broker, make_job: MakeJob) -> None:
    await broker.submit([make_job("a", plan={"image": "shared", "last_image": "own"})], **ROOMY)
    await broker.submit([make_job("b", plan={"image": "shared"})], **ROOMY)
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    checkpoint = Event(job_id="a", kind="checkpoint", data={"sha256": "c", "stage": "denoise", "step": 3})
    await broker.record("a", claim.fence, [checkpoint])
    assert await broker.referenced(["shared", "own", "c", "x"]) == {"shared", "own", "c"}
    with pytest.raises(NotFound):
        await broker.delete("a", "other")
    assert sorted(await broker.delete("a", "t")) == ["c", "own"]
    assert await broker.get("a") is None
    assert await broker.cancelled(["a"]) == ["a"]
    with pytest.raises(NotFound):
        await broker.delete("a", "t")
    assert await broker.delete("b", "t") == ["shared"]
    assert await broker.depth("video") == {"queued": 0, "running": 0, "webhooks": 0}


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_list_pages_hold_every_job_once(broker: Broker, make_job: MakeJob, order: str) -> None:
    # The same second and shuffled names: only the order of submission can tell them apart.
    names = [f"{7 * i % 25:02}" for i in range(25)]
    for name in names:
        await broker.submit([make_job(name)], **ROOMY)
    await broker.submit([make_job("foreign", tenant="u")], **ROOMY)
    seen: list[str] = []
    more, sizes = True, []
    while more:
        items, more = await broker.list("t", after=seen[-1] if seen else None, limit=10, order=order)
        seen += [job.id for job, _ in items]
        sizes.append(len(items))
    assert seen == (names if order == "asc" else names[::-1])
    assert sizes == [10, 10, 5]
    assert (await broker.list("t", limit=25, order=order))[1] is False
    for after in ("never", "foreign"):
        with pytest.raises(NotFound):
            await broker.list("t", after=after)


async def test_list_by_status(broker: Broker, make_job: MakeJob) -> None:
    for i in range(6):
        await broker.submit([make_job(f"{i}", created_at=float(i))], **ROOMY)
    claims = [await broker.claim("video", "w", IDLE) for _ in range(3)]
    assert claims[0] is not None
    assert claims[1] is not None
    await broker.finish("0", claims[0].fence, {}, {})
    await broker.fail("1", claims[1].fence, "numerical_error", "NaN.", retry=False)
    for status, ids in {"completed": "0", "failed": "1", "in_progress": "2", "queued": "345"}.items():
        items, more = await broker.list("t", status=status, order="asc")  # type: ignore[arg-type]
        assert "".join(job.id for job, _ in items) == ids
        assert not more
    items, more = await broker.list("t", status="queued", order="asc", after="1", limit=2)
    assert ([state.queue_position for _, state in items], more) == ([1, 2], True)


@pytest.mark.slow
async def test_ten_thousand_jobs(broker: Broker, make_job: MakeJob) -> None:
    for start in range(0, 10_000, 500):
        await broker.submit([make_job(f"{i:05}", created_at=float(i)) for i in range(start, start + 500)], **ROOMY)
    items, more = await broker.list("t", after="05000", limit=100, status="queued")
    assert [job.id for job, _ in items] == [f"{i:05}" for i in range(4999, 4899, -1)]
    assert more
    found = await broker.get("09999")
    assert found is not None
    assert found[1].queue_position == 10_000
    claim = await broker.claim("video", "w", IDLE)
    assert claim is not None
    assert claim.job.id == "00000"


async def test_a_held_file_is_not_freed(broker: Broker, make_job: MakeJob) -> None:
    plan = {"image": "p", "last_image": "l", "batch_key": ""}
    await broker.submit([make_job("a", plan=plan)], **ROOMY)
    await broker.hold("p", "upload_1")
    assert await broker.delete("a") == ["l"]
    assert await broker.referenced(["p", "l"]) == {"p"}
    await broker.submit([make_job("b", plan=plan)], hold="upload_1", **ROOMY)
    assert sorted(await broker.delete("b")) == ["l", "p"]


async def test_a_hold_ends_by_itself(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    plan = {"image": "p", "last_image": None, "batch_key": ""}
    await broker.submit([make_job("a", plan=plan)], **ROOMY)
    for sha, hold_s in (("p", 0.0), ("q", 0.0), ("r", 100.0)):
        await broker.hold(sha, "upload_1", hold_s=hold_s)
    assert await broker.expire() == [("upload_1", ["q"])]
    assert await broker.referenced(["p", "q", "r"]) == {"p", "r"}
    assert await broker.delete("a") == ["p"]
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        assert redis.zrange("holds", 0, -1) == ["r upload_1"]
        assert redis.keys("ref:*") == ["ref:r"]
