"""Requests that no worker has to compute: what the API finds, keeps and tells of them."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stand_in import outputs
from videoserve.api.app import create_app
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.planning.identity import Maker, identify
from videoserve.storage.files import FileStore
from videoserve.storage.finished import Finished
from videoserve.storage.open_cache import open_cache
from videoserve.types import Appetite, Job
from videoserve_cache.tiers import Hit, Key, SharedCache

pytestmark = pytest.mark.anyio
MAKER = Maker(text="t", clip="c", vae="v", guided="g", plain="p")
MakeVideo = Callable[..., Any]


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    return Settings(redis_url=redis_url, data=tmp_path, private_hosts=("127.0.0.1",))


@pytest.fixture
def cache(settings: Settings) -> Iterator[SharedCache]:
    cache = open_cache(settings.model_copy(update={"cache_memory_gb": 0.01, "cache_disk_gb": 0.1}), serves=False)
    assert cache is not None
    yield cache
    cache.close()


@pytest.fixture
def app(settings: Settings, broker: Broker, files: FileStore, cache: SharedCache) -> Any:
    return create_app(settings, broker, files, cache)


@pytest.fixture
async def makers(broker: Broker, app: Any) -> Callable[..., Any]:
    """await makers(maker, …) -> workers that make such videos live, and this process knows."""

    async def live(*makers: Maker) -> None:
        for number, maker in enumerate(makers):
            told = {"kind": "video", "ready": True, "model": app.state.card.name, "maker": maker.to_dict()}
            await broker.heartbeat(f"w{number}", told, ttl=60)
        app.state.service._makers_read_at = float("-inf")

    return live


async def keep(
    cache: SharedCache, broker: Broker, files: FileStore, video: dict[str, Any], maker: Maker = MAKER
) -> bytes:
    """Leaves a result for the request of `video`, as its worker would; the bytes of its mp4."""
    found = await broker.get(video["id"])
    assert found is not None
    job: Job = found[0]
    made = outputs(files)
    blobs = {output.sha256: files.read(output.sha256) for output in made.values()}
    for sha256 in blobs:
        files.delete(sha256)
    receipt = {"version": 2, "job": job.id, "steps": "RRRR", "batch": [1] * 4, "reuse": {}, "total_s": 9.0}
    receipt |= {"adjustments": ["The first job's.", "The engine's sentence."], "cache": {"asked": {}}}
    finished = Finished(outputs=made, receipt=receipt, adjustments=("The engine's sentence.",), files=blobs)
    digest = identify("result", job.plan, MAKER, job.tenant)
    assert digest is not None
    key = Key(kind="result", digest=digest, tenant=job.tenant, model=job.plan["model"])
    assert cache.put(key, finished.pack(), about={}, cost_s=9.0, cls="E0")
    return bytes(blobs[made["video"].sha256])


async def test_what_was_made_before_is_completed_at_once(
    make_video: MakeVideo, client: httpx.AsyncClient, cache: SharedCache, broker: Broker, files: FileStore, makers: Any
) -> None:
    first = await make_video(seed=3)
    assert first["status"] == "queued"
    mp4 = await keep(cache, broker, files, first)
    # A worker that would make other bits is no reason to give these.
    await makers(Maker(text="t", clip="c", vae="v", guided="other", plain="p"))
    assert (await make_video(seed=3, n=1))["status"] == "queued"
    await makers(MAKER)
    again = await make_video(seed=3)
    assert (again["status"], again["progress"], again["stage"]) == ("completed", 100, "done")
    assert "The engine's sentence." in again["adjustments"]
    receipt = again["receipt"]
    assert (receipt["job"], receipt["steps"], receipt["batch"], receipt["total_s"]) == (
        again["id"],
        "KKKK",
        [0] * 4,
        0.0,
    )
    assert receipt["adjustments"] == again["adjustments"]
    assert receipt["cache"]["asked"] == {"quality": "exact"}
    (entry,) = receipt["reuse"]["entries"]
    assert entry["job"] == first["id"]
    assert (entry["class"], entry["saved_s"], receipt["reuse"]["saved_s"]) == ("E0", 9.0, 9.0)
    await client.delete(f"/v1/videos/{first['id']}")
    assert (await client.get(f"/v1/videos/{again['id']}/content")).content == mp4
    assert (await client.get(f"/v1/videos/{again['id']}/receipt")).json() == receipt
    events = (await client.get(f"/v1/videos/{again['id']}/events")).text
    assert events.count("event: ") == 1
    await client.delete(f"/v1/videos/{again['id']}")
    assert not files.has(hashlib.sha256(mp4).hexdigest())
    assert (await make_video(seed=3))["status"] == "completed"
    assert (await client.get("/v1/videos", params={"status": "completed"})).json()["data"][0]["seed"] == 3


async def test_of_several_videos_those_are_made_that_are_not_there(
    make_video: MakeVideo, cache: SharedCache, broker: Broker, files: FileStore, makers: Any
) -> None:
    await makers(MAKER)
    second = await make_video(seed=4)
    await keep(cache, broker, files, second)
    first = await make_video(seed=3, n=2)
    assert first["status"] == "queued"
    (sibling,) = first["siblings"]
    found = await broker.get(sibling)
    assert found is not None
    assert found[1].status == "completed"


@pytest.mark.parametrize("said", [{}, {"seed": -1}, {"seed": 3, "cache": "balanced"}])
async def test_what_nobody_can_ask_for_twice_is_looked_for_nowhere(
    make_video: MakeVideo, makers: Any, cache: SharedCache, monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    await makers(MAKER)
    asked: list[Key] = []
    monkeypatch.setattr(type(cache), "get", lambda self, key: asked.append(key))
    await make_video(**said)
    assert asked == []


async def test_what_the_file_store_does_not_take_is_left_to_a_worker(
    make_video: MakeVideo,
    cache: SharedCache,
    broker: Broker,
    files: FileStore,
    makers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await makers(MAKER)
    await keep(cache, broker, files, await make_video(seed=4))
    hits: list[Hit] = []

    def full(store: FileStore, finished: Finished) -> None:
        raise ServeError("The disk is full.", code="storage_full", status=507)

    get = cache.get
    monkeypatch.setattr(cache, "get", lambda key: hits.append(get(key)) or hits[-1])  # type: ignore[arg-type, func-returns-value]
    monkeypatch.setattr("videoserve.api.reuse.put_all", full)
    assert (await make_video(seed=4))["status"] == "queued"
    assert [hit.closed for hit in hits] == [True]


SMALL = {"size": "64x64"}
BALANCED = SMALL | {"cache": "balanced"}


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (SMALL, SMALL | {"strict": True}, True),
        (BALANCED, BALANCED, True),
        # Without a calibration only one of them fails.
        (BALANCED, BALANCED | {"strict": True}, False),
        # Only one of them is told that another size is used.
        (SMALL, {"size": "65x64"}, False),
    ],
)
async def test_who_waits_for_another_ends_as_it_would_alone(
    make_video: MakeVideo, broker: Broker, makers: Any, first: Any, second: Any, waits: bool
) -> None:
    videos = [await make_video(seed=3, **asked) for asked in (first, second)]
    assert videos[0]["width"] == videos[1]["width"]
    claims = [await broker.claim("video", "w", Appetite(idle=True)) for _ in videos]
    assert [claim.job.id if claim else None for claim in claims] == [
        videos[0]["id"],
        None if waits else videos[1]["id"],
    ]


async def test_the_same_at_once_waits_for_one(make_video: MakeVideo, broker: Broker, makers: Any) -> None:
    videos = [await make_video(seed=3) for _ in range(3)]
    other = await make_video(seed=5)
    claims = [await broker.claim("video", "w", Appetite(idle=True)) for _ in range(3)]
    assert [claim.job.id if claim else None for claim in claims] == [videos[0]["id"], other["id"], None]


async def test_a_result_that_cannot_be_read_is_made_anew(
    make_video: MakeVideo, cache: SharedCache, broker: Broker, files: FileStore, makers: Any
) -> None:
    await makers(MAKER)
    video = await make_video(seed=3)
    found = await broker.get(video["id"])
    assert found is not None
    digest = identify("result", found[0].plan, MAKER, found[0].tenant)
    assert digest is not None
    key = Key(kind="result", digest=digest, tenant=found[0].tenant, model="m")
    assert cache.put(key, b"\x05\0\0\0\0\0\0\0{}no", about={}, cost_s=1.0, cls="E0")
    assert (await make_video(seed=3))["status"] == "queued"


async def test_webhooks_tell_of_it(
    make_video: MakeVideo, cache: SharedCache, broker: Broker, files: FileStore, makers: Any
) -> None:
    await makers(MAKER)
    await keep(cache, broker, files, await make_video(seed=3))
    before = (await broker.depth("video"))["webhooks"]
    again = await make_video(seed=3, webhook_url="http://127.0.0.1:9/hook")
    assert again["status"] == "completed"
    assert (await broker.depth("video"))["webhooks"] == before + 1
