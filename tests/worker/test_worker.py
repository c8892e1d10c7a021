"""The worker between a real broker and a small engine: leases, order, fences, cancellation, drain."""

import asyncio
import hashlib
import os
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from videoserve.broker.broker import Broker
from videoserve.broker.server import EmbeddedRedis
from videoserve.errors import FenceLost, JobFailed
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Emit, Event, Job
from videoserve.worker.worker import CannotLoad, Worker
from videoserve_kernels.comm.exchange import CommunicationError

pytestmark = pytest.mark.anyio

LEASE_S = 0.9


@dataclass
class ChainEngine:
    """A job is a chain of hashes, a link a step: whoever resumes from a checkpoint ends at the same digest."""

    files: FileStore
    step_s: float = 0.01
    checkpoint_steps: int = 3
    load_error: Exception | None = None
    greedy: bool = False
    kind: str = "video"
    running: dict[str, tuple[Job, int, bytes]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    closed: bool = False

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    def load(self) -> None:
        self._note("load")
        if self.load_error:
            raise self.load_error

    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None:
        self._note(f"admit {job.id}")
        if job.plan.get("refuse"):
            raise JobFailed("hopeless", "The deadline cannot be met.")
        at, value = (checkpoint["step"], self.files.read(checkpoint["sha256"])[32:]) if checkpoint else (0, b"")
        self.running[job.id] = (job, at, value)

    def step(self, emit: Emit) -> bool:
        if not self.running:
            return False
        job_id, (job, at, value) = next(iter(self.running.items()))
        if job.plan.get("break"):
            raise RuntimeError("the device is gone")
        if job.plan.get("part") == at:
            raise CommunicationError("rank 1 is gone")
        if at == 0:
            emit(Event(job_id=job_id, kind="stage", data={"stage": "denoise"}))
        time.sleep(self.step_s)
        at, value = at + 1, hashlib.sha256(value + job.plan["text"].encode()).digest()
        self.running[job_id] = (job, at, value)
        steps = job.plan["steps"]
        progress = {"progress": 100 * at // steps, "step": at, "steps": steps, "eta_s": 0.0}
        emit(Event(job_id=job_id, kind="progress", data=progress))
        if at == steps:
            del self.running[job_id]
            self._note(f"done {job_id}")
            out = {"sha256": self.files.put(value), "bytes": len(value), "media_type": "video/mp4"}
            emit(Event(job_id=job_id, kind="done", data={"outputs": {"video": out}, "receipt": {"steps": steps}}))
        elif at % self.checkpoint_steps == 0:
            emit(Event(job_id=job_id, kind="checkpoint", data=self._checkpoint(job_id)))
        return bool(self.running)

    def _checkpoint(self, job_id: str) -> dict[str, Any]:
        _, at, value = self.running[job_id]
        # The job's id in front: the same state of another job is another file.
        sha = self.files.put(hashlib.sha256(job_id.encode()).digest() + value)
        return {"sha256": sha, "stage": "denoise", "step": at}

    def cancel(self, job_id: str) -> None:
        self._note(f"cancel {job_id}")
        self.running.pop(job_id, None)

    def suspend(self, job_id: str) -> dict[str, Any] | None:
        self._note(f"suspend {job_id}")
        if job_id not in self.running or self.running[job_id][1] == 0:
            return None
        checkpoint = self._checkpoint(job_id)
        del self.running[job_id]
        return checkpoint

    def wants(self) -> Appetite | None:
        self.threads.add(threading.get_ident())
        return None if self.running and not self.greedy else Appetite(idle=True)

    def costs(self) -> dict[str, Any]:
        return {"4x4x1:g0": {"step": self.step_s, "encode": 0.0, "decode": 0.0}}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def open_broker(redis: EmbeddedRedis, retry_s: float = 5.0) -> Broker:
    return Broker.connect(redis.url, lease_s=LEASE_S, max_attempts=3, aging_s=60.0, retention_s=3600.0, retry_s=retry_s)


@pytest.fixture
async def broker(redis: EmbeddedRedis) -> AsyncIterator[Broker]:
    broker = open_broker(redis)
    yield broker
    await broker.close()


@asynccontextmanager
async def working(broker: Broker, files: FileStore, engine: ChainEngine) -> AsyncIterator[Worker]:
    worker = Worker(broker, files, engine, model="chain", lease_s=LEASE_S, drain_s=5.0)
    run = asyncio.create_task(worker.run())
    yield worker
    worker.stop()
    await run


def make_job(steps: int, text: str = "a", **plan: Any) -> Job:
    plan = {"steps": steps, "text": text, "batch_key": "k"} | plan
    return Job(id=uuid.uuid4().hex, kind="video", tenant="t", request={}, plan=plan, created_at=time.time())


def chain_end(job: Job) -> str:
    """sha256 of what an undisturbed run of `job` stores."""
    value = b""
    for _ in range(job.plan["steps"]):
        value = hashlib.sha256(value + job.plan["text"].encode()).digest()
    return hashlib.sha256(value).hexdigest()


async def submit(broker: Broker, *jobs: Job) -> None:
    await broker.submit(list(jobs), idempotency=None, queue_limit=100, key_queue_limit=100)


async def until(reached: Callable[[], Awaitable[bool]], timeout_s: float = 15.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await reached():
            await asyncio.sleep(0.01)


async def until_status(broker: Broker, job: Job, *statuses: str) -> Any:
    async def reached() -> bool:
        found = await broker.get(job.id, None)
        assert found is not None
        return found[1].status in statuses

    await until(reached)
    found = await broker.get(job.id, None)
    assert found is not None
    return found[1]


async def until_progress(broker: Broker, job: Job, at_least: int) -> None:
    async def reached() -> bool:
        found = await broker.get(job.id, None)
        assert found is not None
        return found[1].progress >= at_least

    await until(reached)


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


async def test_heartbeat_says_ready_only_after_loading(broker: Broker, files: FileStore) -> None:
    gate = threading.Event()
    engine = ChainEngine(files)
    engine.load = lambda: gate.wait() and None  # type: ignore[method-assign]
    async with working(broker, files, engine) as worker:
        await until(lambda: _alive(broker, worker, ready=False))
        gate.set()
        await until(lambda: _alive(broker, worker, ready=True))
        assert await broker.costs("chain") == {"4x4x1:g0": {"step": 0.01, "encode": 0.0, "decode": 0.0}}
    assert await broker.workers() == []


async def _alive(broker: Broker, worker: Worker, ready: bool) -> bool:
    return [w["ready"] for w in await broker.workers() if w["id"] == worker.id] == [ready]


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
        await until(lambda: _claimed(engine, job))
        asked = time.monotonic()
        await broker.cancel(job.id, "t")
        state = await until_status(broker, job, "failed")
        assert time.monotonic() - asked < 0.5
        assert state.error is not None
        assert state.error["code"] == "cancelled"
        assert (await until_status(broker, following, "completed")).outputs["video"].sha256 == chain_end(following)
    assert engine.running == {}


async def _claimed(engine: ChainEngine, job: Job) -> bool:
    return job.id in engine.running


async def test_a_deleted_job_is_dropped_by_the_engine(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files)
    job = make_job(steps=10_000)
    async with working(broker, files, engine):
        await submit(broker, job)
        await until(lambda: _claimed(engine, job))
        await broker.delete(job.id, "t")
        await until(lambda: _dropped(engine))


async def _dropped(engine: ChainEngine) -> bool:
    return not engine.running


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
        await until(lambda: _dropped(engine))
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


async def test_drain_hands_the_job_over_at_a_checkpoint_and_another_worker_ends_it_alike(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=60)
    first = ChainEngine(files, step_s=0.02, checkpoint_steps=1000)
    async with working(broker, files, first):
        await submit(broker, job)
        await until_progress(broker, job, 20)
    state = await until_status(broker, job, "queued")
    assert state.attempt == 0
    assert state.checkpoint is not None
    assert 12 <= state.checkpoint["step"] < 60
    second = ChainEngine(files)
    async with working(broker, files, second):
        state = await until_status(broker, job, "completed", "failed")
    assert state.outputs["video"].sha256 == chain_end(job)
    steps = [e.data["step"] for e in [e async for e in broker.events(job.id, 0)] if e.kind == "progress"]
    assert steps == list(range(1, 61))


async def test_a_job_that_a_drain_catches_at_its_end_is_reported_not_handed_back(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=1)
    async with working(broker, files, ChainEngine(files, step_s=0.4)):
        await submit(broker, job)
        await asyncio.sleep(0.2)
    assert (await until_status(broker, job, "completed", "queued")).status == "completed"


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
        await until(lambda: _dropped(engine))
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


async def test_a_broken_engine_ends_the_worker_and_the_attempt_is_counted_with_its_reason(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=1, **{"break": True})
    await submit(broker, job)
    for attempt in range(3):
        worker = Worker(broker, files, ChainEngine(files), model="chain", lease_s=LEASE_S, drain_s=5.0)
        with pytest.raises(RuntimeError, match="device is gone"):
            await worker.run()
        state = await until_status(broker, job, "queued", "failed")
        assert len(state.reasons) == attempt + 1
    assert state.error is not None
    assert state.error["code"] == "attempts_exhausted"
    assert all("device is gone" in str(reason) for reason in state.reasons)


async def test_a_model_that_cannot_be_used_is_not_tried_again(broker: Broker, files: FileStore) -> None:
    engine = ChainEngine(files, load_error=ValueError("The device is 'cuda:9', which this machine does not have."))
    worker = Worker(broker, files, engine, model="chain", lease_s=LEASE_S, drain_s=5.0)
    with pytest.raises(CannotLoad, match="cuda:9"):
        await worker.run()


async def test_a_lost_rank_sends_the_job_back_from_where_it_is_and_counts_only_when_it_came_no_further(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=20, part=7)
    await submit(broker, job)
    for attempt in (0, 1, 2):
        worker = Worker(broker, files, ChainEngine(files), model="chain", lease_s=LEASE_S, drain_s=5.0)
        with pytest.raises(CommunicationError, match="rank 1 is gone"):
            await worker.run()
        state = await until_status(broker, job, "queued")
        assert (state.attempt, state.checkpoint["step"]) == (attempt, 7)
    assert ["rank 1 is gone" in reason["sentence"] for reason in state.reasons] == [True, True]
    assert await broker.workers() == []


async def test_word_that_a_rank_is_gone_ends_the_worker_between_two_steps(broker: Broker, files: FileStore) -> None:
    job = make_job(steps=1000)
    engine = ChainEngine(files)
    worker = Worker(broker, files, engine, model="chain", lease_s=LEASE_S, drain_s=5.0)
    run = asyncio.create_task(worker.run())
    await submit(broker, job)
    await until_progress(broker, job, 1)
    worker.part()
    with pytest.raises(CommunicationError, match="another rank of the worker has ended"):
        await run
    state = await until_status(broker, job, "queued")
    assert (state.attempt, engine.running) == (0, {})
    assert state.checkpoint["step"] >= 10
