"""The worker between a real broker and a small engine: leases, order, fences, cancellation."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chain_worker import (
    LEASE_S,
    ChainEngine,
    alive,
    chain_end,
    claimed,
    dropped,
    make_job,
    open_broker,
    submit,
    until,
    until_progress,
    until_status,
    working,
)
from videoserve.broker.broker import Broker
from videoserve.broker.server import EmbeddedRedis
from videoserve.errors import FenceLost, ServeError
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Event
from videoserve.worker.worker import CannotLoad, Worker

pytestmark = pytest.mark.anyio


async def test_jobs_run_in_one_thread_and_their_events_arrive_in_order(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files)
    jobs = [make_job(steps=7, text=str(i)) for i in range(3)]
    async with working(broker, files, engine):
        await submit(broker, *jobs)
        for job in jobs:
            state = await until_status(broker, job, "completed", "failed")
            assert state.status == "completed"
            assert state.outputs["video"].sha256 == chain_end(job)
            assert state.receipt == {"steps": 7}
            events = [event async for event in broker.events(job.id, 0)]
            assert [e.data["step"] for e in events if e.kind == "progress"] == list(range(1, 8))
            assert [events[0].kind, events[-1].kind] == ["stage", "done"]
            assert [e.seq for e in events] == sorted({e.seq for e in events})
    assert len(engine.threads - {threading.get_ident()}) == len(engine.threads) == 1
    assert engine.closed


async def test_checkpoints_that_are_replaced_leave_the_file_store(broker: Broker, files: FileStore) -> None:
    job = make_job(steps=20)

    async def only_the_result_is_left() -> bool:
        return [path.name for path in files.root.glob("[0-9a-f][0-9a-f]/*")] == [chain_end(job)]

    async with working(broker, files, ChainEngine(files, checkpoint_steps=2)):
        await submit(broker, job)
        await until_status(broker, job, "completed")
        await until(only_the_result_is_left)


class Unyielding(FileStore):
    """Deletes nothing, like a bucket that cannot be reached."""

    def delete(self, sha: str, *, last_put_before: float | None = None) -> bool:
        raise ServeError("The bucket is away.", status=503, code="store_unavailable")


async def test_a_replaced_checkpoint_that_cannot_be_deleted_costs_neither_job_nor_worker(
    broker: Broker, tmp_path: Path
) -> None:
    files = Unyielding(tmp_path / "files")
    job, following = make_job(steps=20), make_job(steps=20)
    async with working(broker, files, ChainEngine(files, checkpoint_steps=2)):
        await submit(broker, job, following)
        for each in (job, following):
            state = await until_status(broker, each, "completed", "failed")
            assert (state.status, state.attempt) == ("completed", 1)


async def test_what_was_told_before_the_store_went_away_is_told_once(
    broker: Broker, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = broker.record
    lost = []

    async def unanswered(job_id: str, fence: int, events: Sequence[Event], **call: str) -> list[str]:
        freed = await record(job_id, fence, events, **call)
        if len(lost) < 2:
            lost.append(job_id)
            raise ServeError("The job store did not answer.", status=503, code="store_unavailable")
        return freed

    monkeypatch.setattr(broker, "record", unanswered)
    job = make_job(steps=5)
    async with working(broker, files, ChainEngine(files)):
        await submit(broker, job)
        await until_status(broker, job, "completed")
    assert lost
    steps = [event.data["step"] async for event in broker.events(job.id, 0) if event.kind == "progress"]
    assert steps == [1, 2, 3, 4, 5]


async def test_heartbeat_says_ready_only_after_loading(broker: Broker, files: FileStore) -> None:
    gate = threading.Event()
    engine = ChainEngine(files)
    engine.load = lambda: gate.wait() and None  # type: ignore[method-assign]
    async with working(broker, files, engine) as worker:
        await until(lambda: alive(broker, worker, ready=False))
        gate.set()
        await until(lambda: alive(broker, worker, ready=True))
        assert await broker.costs("chain") == {"4x4x1:g0": {"step": 0.01, "encode": 0.0, "decode": 0.0}}
    assert await broker.workers() == []


async def test_a_lease_is_kept_through_a_step_longer_than_it(broker: Broker, files: FileStore) -> None:
    job = make_job(steps=2)
    async with working(broker, files, ChainEngine(files, step_s=1.6 * LEASE_S)):
        await submit(broker, job)
        state = await until_status(broker, job, "completed", "failed")
    assert (state.status, state.attempt) == ("completed", 1)


async def test_cancel_ends_a_running_job_within_a_step_and_frees_the_engine(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files, step_s=0.05)
    job, following = make_job(steps=10_000), make_job(steps=3)
    async with working(broker, files, engine):
        await submit(broker, job)
        await submit(broker, following)
        await until_progress(broker, job, 0)
        await until(lambda: claimed(engine, job))
        asked = time.monotonic()
        await broker.cancel(job.id, "t")
        state = await until_status(broker, job, "failed")
        # All its steps would take 500 s.
        assert time.monotonic() - asked < 60
        assert state.error is not None
        assert state.error["code"] == "cancelled"
        assert (await until_status(broker, following, "completed")).outputs["video"].sha256 == chain_end(following)
    assert engine.running == {}


async def test_a_deleted_job_is_dropped_by_the_engine(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files)
    job = make_job(steps=10_000)
    async with working(broker, files, engine):
        await submit(broker, job)
        await until(lambda: claimed(engine, job))
        await broker.delete(job.id, "t")
        await until(lambda: dropped(engine))


async def test_a_late_result_is_refused_and_the_engine_told_to_forget(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files, step_s=0.02)
    job = make_job(steps=100)
    async with working(broker, files, engine):
        await submit(broker, job)
        await until_progress(broker, job, 5)
        found = await broker.get(job.id, None)
        assert found is not None
        # As after a stop past the lease: the store gives the job to another worker while this one computes it.
        await broker.release(job.id, found[1].fence)
        other = await broker.claim("video", "other", Appetite(idle=True))
        assert other is not None
        await until(lambda: dropped(engine))
        await asyncio.sleep(0.1)
        state = await until_status(broker, job, "in_progress")
        assert (state.worker, state.fence) == ("other", other.fence)
        with pytest.raises(FenceLost):
            await broker.renew(job.id, found[1].fence)
        await broker.release(job.id, other.fence)
        state = await until_status(broker, job, "completed", "failed")
    assert state.status == "completed"
    assert state.outputs["video"].sha256 == chain_end(job)


async def test_what_an_earlier_lease_computed_is_not_told_under_a_later_one_of_the_same_worker(
    broker: Broker, files: FileStore
) -> None:
    """The store gives a job away in the middle of a step, and the worker, hungry for more, is who gets it again."""
    engine = ChainEngine(files, step_s=0.4, checkpoint_steps=1000, greedy=True)
    job = make_job(steps=4)

    async def steps() -> list[int]:
        stream = broker.events(job.id, 0)
        told = []
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                async for event in stream:
                    if event.kind == "progress":
                        told.append(event.data["step"])
        return told

    async with working(broker, files, engine):
        await submit(broker, job)
        await until_progress(broker, job, 50)
        found = await broker.get(job.id, None)
        assert found is not None
        await broker.release(job.id, found[1].fence)
        state = await until_status(broker, job, "completed", "failed")
    assert state.outputs["video"].sha256 == chain_end(job)
    assert engine.calls.count(f"admit {job.id}") == 2
    assert await steps() == [1, 2, 1, 2, 3, 4]


async def test_work_goes_on_while_redis_is_away_and_is_reported_when_it_is_back(
    redis: EmbeddedRedis, files: FileStore
) -> None:
    broker = open_broker(redis, retry_s=0.2)
    watcher = open_broker(redis)
    engine = ChainEngine(files, step_s=0.01)
    job = make_job(steps=60)
    async with working(broker, files, engine):
        await submit(broker, job)
        await until_progress(watcher, job, 10)
        assert redis.process is not None
        os.kill(redis.process.pid, signal.SIGKILL)
        redis.process.wait()
        await until(lambda: dropped(engine))
        redis.start()
        state = await until_status(watcher, job, "completed", "failed")
    assert state.outputs["video"].sha256 == chain_end(job)
    steps = [e.data["step"] for e in [e async for e in watcher.events(job.id, 0)] if e.kind == "progress"]
    assert sorted(set(steps)) == list(range(1, 61))
    await broker.close()
    await watcher.close()


async def test_a_job_the_engine_refuses_fails_and_the_next_one_runs(broker: Broker, files: FileStore) -> None:
    refused, following = make_job(steps=1, refuse=True), make_job(steps=1)
    async with working(broker, files, ChainEngine(files)):
        await submit(broker, refused)
        await submit(broker, following)
        state = await until_status(broker, refused, "failed")
        assert state.error == {"code": "hopeless", "message": "The deadline cannot be met."}
        await until_status(broker, following, "completed")


async def test_a_model_that_cannot_be_used_is_not_tried_again(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files, load_error=ValueError("The device is 'cuda:9', which this machine does not have."))
    worker = Worker(broker, files, engine, model="chain", lease_s=LEASE_S, drain_s=5.0)
    with pytest.raises(CannotLoad, match="cuda:9"):
        await worker.run()
