"""A worker whose file store fails: its jobs wait for the store, and none of their attempts is used up."""

from pathlib import Path

import pytest

from tests.chain_worker import ChainEngine, alive, make_job, submit, until, until_status, working
from videoserve.broker.broker import Broker
from videoserve.errors import ServeError
from videoserve.storage.files import FileStore, disk_full
from videoserve.types import Appetite, Event
from videoserve.worker import storing

pytestmark = pytest.mark.anyio

FAILURES = {"storage_full": disk_full(), "store_unavailable": ServeError("Away.", status=503, code="store_unavailable")}


class Failing(FileStore):
    """Neither reads nor stores while `error` is set; `checks` counts who asked whether it does."""

    error: ServeError | None = None
    checks = 0

    def put(self, data: bytes) -> str:
        self._fail()
        return super().put(data)

    def read(self, sha: str) -> bytes:
        self._fail()
        return super().read(sha)

    def check(self) -> None:
        self.checks += 1
        self._fail()
        super().check()

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    monkeypatch.setattr(storing, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(storing, "LONGEST_PAUSE_S", 0.02)
    return Failing(tmp_path / "files")


@pytest.mark.parametrize("code", FAILURES)
@pytest.mark.parametrize("begun", [False, True])
async def test_jobs_wait_for_a_file_store_that_fails(broker: Broker, store: Failing, code: str, begun: bool) -> None:
    jobs = [make_job(steps=2, text=str(number)) for number in range(3)]
    await submit(broker, *jobs)
    if begun:
        # Then it is the checkpoint that cannot be read.
        await leave_a_checkpoint(broker, store)
    store.error = FAILURES[code]
    engine = ChainEngine(store)

    async def waits() -> bool:
        return store.checks >= 10

    async with working(broker, store, engine) as worker:
        await until(waits)
        await until(lambda: alive(broker, worker, ready=False))
        assert len([call for call in engine.calls if call.startswith("admit")]) == 1
        for job in jobs:
            found = await broker.get(job.id)
            assert found is not None
            assert (found[1].status, found[1].attempt) == ("queued", 0)
        store.error = None
        for job in jobs:
            state = await until_status(broker, job, "completed", "failed")
            assert (state.status, state.attempt) == ("completed", 1)
        await until(lambda: alive(broker, worker, ready=True))


async def test_a_worker_drains_while_its_file_store_fails(broker: Broker, store: Failing) -> None:
    job = make_job(steps=2)
    store.error = FAILURES["store_unavailable"]

    async def waits() -> bool:
        return store.checks >= 3

    async with working(broker, store, ChainEngine(store)):
        await submit(broker, job)
        await until(waits)
    assert (await until_status(broker, job, "queued")).attempt == 0


async def test_what_only_one_job_cannot_store_is_its_own_failure(
    broker: Broker, store: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "check", lambda: None)
    job = make_job(steps=2)
    store.error = FAILURES["store_unavailable"]
    async with working(broker, store, ChainEngine(store)):
        await submit(broker, job)
        state = await until_status(broker, job, "failed")
    assert (state.error["code"], state.attempt) == ("attempts_exhausted", 3)


async def leave_a_checkpoint(broker: Broker, store: Failing) -> None:
    claim = await broker.claim("video", "earlier", Appetite(idle=True))
    assert claim is not None
    data = {"sha256": store.put(bytes(64)), "stage": "denoise", "step": 1}
    await broker.record(claim.job.id, claim.fence, [Event(job_id=claim.job.id, kind="checkpoint", data=data)])
    await broker.release(claim.job.id, claim.fence)
