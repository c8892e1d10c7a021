"""Two jobs that give the same bytes: what one of them frees, the other one still has."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from videoserve.background import Background
from videoserve.broker import Broker, Claim
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Event, Job, Output
from videoserve.worker.forward import Ending, Forwarder
from videoserve.worker.teller import Teller

pytestmark = pytest.mark.anyio
VIDEO = b"the same bytes"
MakeJob = Callable[..., Job]


@pytest.fixture
def files(tmp_path: Any) -> FileStore:
    return FileStore(tmp_path / "files")


class Twin:
    """A claimed job whose engine has just ended: its result is in the store, and nobody has told the broker."""

    def __init__(self, broker: Broker, files: FileStore, claim: Claim):
        self.broker, self.files, self.claim = broker, files, claim
        self.video = files.put(VIDEO)

    @property
    def id(self) -> str:
        return self.claim.job.id

    async def end(self) -> None:
        outputs = {"video": {"sha256": self.video, "bytes": len(VIDEO), "media_type": "video/mp4"}}
        forwarder = Forwarder(self.broker, self.files, self.claim, Teller(self.broker, Background()))
        forwarder.add(Event(job_id=self.id, kind="done", data={"outputs": outputs, "receipt": {}}))
        assert await forwarder.run() is Ending.REPORTED

    async def delete(self) -> None:
        """As the API does."""
        began = time.time()
        for sha256 in await self.broker.delete(self.id):
            self.files.delete(sha256, last_put_before=began)

    async def status(self) -> str:
        found = await self.broker.get(self.id)
        assert found is not None
        # What is completed is there.
        assert found[1].status != "completed" or self.files.read(self.video) == VIDEO
        return found[1].status


@pytest.fixture
async def twins(broker: Broker, files: FileStore, make_job: MakeJob) -> tuple[Twin, Twin]:
    await broker.submit([make_job("a"), make_job("b")], queue_limit=10, key_queue_limit=10)
    return await claimed(broker, files), await claimed(broker, files)


async def claimed(broker: Broker, files: FileStore) -> Twin:
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    return Twin(broker, files, claim)


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_freed_before_the_other_has_told_of_it(
    broker: Broker, files: FileStore, twins: tuple[Twin, Twin], how: str
) -> None:
    a, b = twins
    if how == "cancelled":
        await broker.cancel(a.id)
        await a.end()
    else:
        await a.end()
        await a.delete()
    await b.end()
    assert await b.status() == "queued"
    found = await broker.get(b.id)
    assert found is not None
    assert "deleted" in found[1].reasons[0]["sentence"]
    again = await claimed(broker, files)
    await again.end()
    assert await again.status() == "completed"
    await again.delete()
    assert not files.has(again.video)


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_freed_while_the_other_tells_of_it(
    broker: Broker, files: FileStore, twins: tuple[Twin, Twin], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    a, b = twins
    finish = broker.finish
    if how == "deleted":
        await a.end()

    async def late(job_id: str, fence: int, *told: Any, **more: Any) -> list[str]:
        if job_id == b.id and how == "deleted":
            await a.delete()
        elif job_id == b.id:
            await broker.cancel(a.id)
            await a.end()
        return await finish(job_id, fence, *told, **more)

    monkeypatch.setattr(broker, "finish", late)
    await b.end()
    assert await b.status() == "completed"


async def test_freed_before_and_deleted_after_the_other_has_told_of_it(
    broker: Broker, files: FileStore, twins: tuple[Twin, Twin], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = twins
    await broker.cancel(a.id)
    finish = broker.finish

    async def slow(job_id: str, fence: int, outputs: Mapping[str, Output], *told: Any, **more: Any) -> list[str]:
        freed = await finish(job_id, fence, outputs, *told, **more)
        if job_id == a.id:
            assert freed == [a.video]
            await b.end()
        return freed

    monkeypatch.setattr(broker, "finish", slow)
    await a.end()
    assert await b.status() == "completed"


async def test_nothing_holds_a_result_after_its_job(broker: Broker, files: FileStore, twins: tuple[Twin, Twin]) -> None:
    a, b = twins
    await a.end()
    await b.end()
    await a.delete()
    assert files.has(b.video)
    await b.delete()
    assert not files.has(b.video)
    assert not await broker.references(b.video)
