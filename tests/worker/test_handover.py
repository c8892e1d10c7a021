"""How a worker lets go of its jobs: in a drain, when its engine breaks, and when it has lost a rank."""

import asyncio
import errno
from typing import Any

import pytest

from tests.chain_worker import (
    LEASE_S,
    ChainEngine,
    chain_end,
    make_job,
    submit,
    until_progress,
    until_status,
    working,
)
from videoserve.broker.broker import Broker
from videoserve.storage.files import FileStore
from videoserve.types import Appetite
from videoserve.worker.worker import Worker
from videoserve_kernels.comm.exchange import CommunicationError

pytestmark = pytest.mark.anyio


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


async def test_a_drain_that_waits_for_a_step_longer_than_the_lease_keeps_the_job(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=3)

    async def be_idle() -> None:
        while await broker.claim("video", "other", Appetite(idle=True)) is None:
            await asyncio.sleep(0.05)

    async with working(broker, files, ChainEngine(files, step_s=2 * LEASE_S)):
        await submit(broker, job)
        await until_progress(broker, job, 33)
        waiting = asyncio.create_task(be_idle())
    await waiting
    state = await until_status(broker, job, "in_progress")
    assert (state.worker, state.attempt, state.reasons, state.checkpoint["step"]) == ("other", 1, (), 2)


class Unwritable(ChainEngine):
    """Its disk is in trouble."""

    def suspend(self, job_id: str) -> dict[str, Any] | None:
        raise OSError(errno.EIO, "Input/output error")


async def test_a_checkpoint_that_cannot_be_written_leaves_the_attempt_uncounted(
    broker: Broker, files: FileStore
) -> None:
    jobs = [make_job(steps=60), make_job(steps=60)]
    async with working(broker, files, Unwritable(files, step_s=0.02, greedy=True)):
        await submit(broker, *jobs)
        for job in jobs:
            await until_status(broker, job, "in_progress")
        await until_progress(broker, jobs[0], 10)
    for job in jobs:
        state = await until_status(broker, job, "queued")
        assert (state.attempt, state.reasons) == (0, ())


async def test_a_job_that_a_drain_catches_at_its_end_is_reported_not_handed_back(
    broker: Broker, files: FileStore
) -> None:
    job = make_job(steps=1)
    async with working(broker, files, ChainEngine(files, step_s=0.4)):
        await submit(broker, job)
        await asyncio.sleep(0.2)
    assert (await until_status(broker, job, "completed", "queued")).status == "completed"


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
