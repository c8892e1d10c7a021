"""What the janitor takes, and whose files it never touches."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from videoserve import janitor
from videoserve.broker import Broker, EmbeddedRedis
from videoserve.janitor import ForeignFiles, keep_clean, own_files
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Job

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[Broker]:
    """The broker of another Redis, in which none of our jobs is."""
    (tmp_path / "other").mkdir()
    with EmbeddedRedis(tmp_path / "other") as server:
        broker = Broker.connect(server.url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
        yield broker
        await broker.close()


def put_long_ago(files: FileStore, data: bytes) -> str:
    sha = files.put(data)
    then = time.time() - 2 * janitor.SWEEP_AGE_S
    os.utime(files.path(sha), (then, then))
    return sha


async def clean_for(seconds: float, broker: Broker, files: FileStore) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(keep_clean(broker, files), seconds)


async def test_blobs_without_a_job_go(broker: Broker, files: FileStore, make_job: Any) -> None:
    needed, left_over = put_long_ago(files, b"needed"), put_long_ago(files, b"left over")
    await broker.submit([make_job("a", plan={"image": needed})], queue_limit=9, key_queue_limit=9)
    await clean_for(1.0, broker, files)
    assert (files.has(needed), files.has(left_over)) == (True, False)


async def test_the_files_of_another_redis_stay(broker: Broker, other: Broker, files: FileStore, make_job: Any) -> None:
    needed = put_long_ago(files, b"needed")
    await broker.submit([make_job("a", plan={"image": needed})], queue_limit=9, key_queue_limit=9)
    await own_files(broker, files)
    with pytest.raises(ForeignFiles, match="belong to the jobs of another Redis") as refusal:
        await asyncio.wait_for(keep_clean(other, files), 10)
    assert str(files.root / "owner") in str(refusal.value)
    assert files.has(needed)
    # Its own go on.
    await own_files(broker, files)
    await clean_for(0.5, broker, files)
    # What the sentence says helps.
    (files.root / "owner").unlink()
    await clean_for(1.0, other, files)
    assert not files.has(needed)


async def test_a_redis_has_its_files_in_one_place(broker: Broker, other: Broker, tmp_path: Path) -> None:
    ours, elsewhere = FileStore(tmp_path / "ours"), FileStore(tmp_path / "elsewhere")
    await own_files(broker, ours)
    with pytest.raises(ForeignFiles, match="have their files elsewhere") as refusal:
        await own_files(broker, elsewhere)
    assert str(elsewhere.root / "owner") in str(refusal.value)
    # What was refused is still nobody's: another Redis may have it.
    await own_files(other, elsewhere)
    # The same folder, mounted at another path.
    (tmp_path / "mounted").symlink_to(ours.root)
    await own_files(broker, FileStore(tmp_path / "mounted"))
    # What the sentence says helps.
    instead = FileStore(tmp_path / "instead")
    mark = await broker.files_mark()
    assert f"write {mark} into" in str(refusal.value)
    (instead.root / "owner").write_text(f"{mark}\n")
    await own_files(broker, instead)


async def test_the_name_of_a_redis_outlives_its_restart(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with EmbeddedRedis(tmp_path) as server:
            broker = Broker.connect(server.url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
            names += await asyncio.gather(*(broker.identity() for _ in range(5)))
            await broker.close()
    assert len(set(names)) == 1


async def test_a_redis_that_lost_its_jobs_is_another_one(broker: Broker, redis_url: str, files: FileStore) -> None:
    await own_files(broker, files)
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    with pytest.raises(ForeignFiles):
        await own_files(broker, files)


async def test_chats_end_whose_asker_is_gone(
    broker: Broker, make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the first look: a process that was silent while the store was away may have its say before the next."""
    monkeypatch.setattr(janitor, "ASKERS_EVERY_S", 0.02)
    looks: list[list[str]] = []
    strays = broker.strays

    async def look(kind: str) -> list[str]:
        looks.append(await strays(kind))
        return looks[-1]

    monkeypatch.setattr(broker, "strays", look)
    askers = {"gone": {"asker": "api-1"}, "runs": {"asker": "api-1"}, "alive": {"asker": "api-2"}, "nobody's": {}}
    chats = [make_job(name, kind="chat", request=request) for name, request in askers.items()]
    await broker.submit(chats, queue_limit=10, key_queue_limit=10)
    await broker.heartbeat("api-2", {"kind": "api", "ready": True}, ttl=60)
    claims = [await broker.claim("chat", "w", Appetite(idle=True)) for _ in chats]
    running = next(claim for claim in claims if claim and claim.job.id == "runs")
    await broker.release("gone", next(claim.fence for claim in claims if claim and claim.job.id == "gone"))
    watching = asyncio.create_task(janitor.watch_askers(broker))
    async with asyncio.timeout(20):
        while not await broker.renew("runs", running.fence) or len(looks) < 3:
            await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert sorted(looks[0]) == sorted(looks[1]) == ["gone", "runs"]
    found = {job.id: state for job, state in filter(None, await broker.get_many(list(askers)))}
    assert found["gone"].error == {"code": "cancelled", "message": "The job was cancelled."}
    assert {name: found[name].status for name in ("alive", "nobody's")} == dict.fromkeys(
        ("alive", "nobody's"), "in_progress"
    )
