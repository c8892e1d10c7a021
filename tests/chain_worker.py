"""A worker around a small engine whose jobs are chains of hashes, for tests of the worker with a real broker."""

import asyncio
import hashlib
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from videoserve.broker.broker import Broker
from videoserve.broker.server import EmbeddedRedis
from videoserve.errors import JobFailed, ServeError
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Emit, Event, Job
from videoserve.worker.worker import Worker
from videoserve_kernels.comm.exchange import CommunicationError

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
        try:
            self._step(emit, job, at, value)
        except ServeError as error:
            del self.running[job_id]
            data = {"code": error.code, "message": error.message, "retry": True}
            emit(Event(job_id=job_id, kind="failed", data=data))
        return bool(self.running)

    def _step(self, emit: Emit, job: Job, at: int, value: bytes) -> None:
        job_id = job.id
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
            sha = self.files.put(value)
            del self.running[job_id]
            self._note(f"done {job_id}")
            out = {"sha256": sha, "bytes": len(value), "media_type": "video/mp4"}
            emit(Event(job_id=job_id, kind="done", data={"outputs": {"video": out}, "receipt": {"steps": steps}}))
        elif at % self.checkpoint_steps == 0:
            emit(Event(job_id=job_id, kind="checkpoint", data=self._checkpoint(job_id)))

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


def open_broker(redis: EmbeddedRedis, retry_s: float = 5.0) -> Broker:
    return Broker.connect(redis.url, lease_s=LEASE_S, max_attempts=3, aging_s=60.0, retention_s=3600.0, retry_s=retry_s)


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


async def alive(broker: Broker, worker: Worker, ready: bool) -> bool:
    return [w["ready"] for w in await broker.workers() if w["id"] == worker.id] == [ready]


async def claimed(engine: ChainEngine, job: Job) -> bool:
    return job.id in engine.running


async def dropped(engine: ChainEngine) -> bool:
    return not engine.running
