"""A picture that one request stores while another deletes the last video that had it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from videoserve.api import service, submission
from videoserve.broker import Broker
from videoserve.media.image import normalise
from videoserve.storage.files import FileStore

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Awaitable[Any]], None]:
    """between(deed): the next request has stored its picture, then `deed` happens, then its job is written."""
    submit = submission.submit

    def arrange(deed: Awaitable[Any]) -> None:
        async def delayed(*told: Any) -> Any:
            await deed
            return await submit(*told)

        monkeypatch.setattr("videoserve.api.create.submit", delayed)

    return arrange


@pytest.mark.parametrize("again", ["create", "remix"])
async def test_deleted_between_picture_and_job(
    client: httpx.AsyncClient,
    make_video: Make,
    files: FileStore,
    broker: Broker,
    between: Callable[..., None],
    again: str,
) -> None:
    first = await make_video()
    between(client.delete(f"/v1/videos/{first['id']}"))
    if again == "create":
        second = await make_video()
    else:
        second = (await client.post(f"/v1/videos/{first['id']}/remix", json={"prompt": "zoom out"})).json()
    found = await broker.get(second["id"])
    assert found is not None
    assert files.has(found[0].plan["image"])
    await client.delete(f"/v1/videos/{second['id']}")
    assert not files.has(found[0].plan["image"])


async def test_freed_before_the_upload_and_deleted_after_it(
    make_video: Make, files: FileStore, broker: Broker, data_url: str
) -> None:
    first = await make_video()
    began = time.time()
    (sha256,) = await broker.delete(first["id"])
    second = await make_video()
    assert not files.delete(sha256, last_put_before=began)
    found = await broker.get(second["id"])
    assert found is not None
    assert found[0].plan["image"] == sha256
    assert files.has(sha256)


async def test_remix_of_a_video_that_goes_meanwhile(
    client: httpx.AsyncClient, make_video: Make, broker: Broker, files: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await make_video()
    hold = broker.hold

    async def late(sha256: str, name: str) -> None:
        for digest in await broker.delete(source["id"]):
            files.delete(digest)
        await hold(sha256, name)

    monkeypatch.setattr(broker, "hold", late)
    answer = await client.post(f"/v1/videos/{source['id']}/remix", json={"prompt": "zoom out"})
    assert answer.status_code == 409
    assert "deleted just now" in answer.json()["error"]["message"]
    assert await broker.depth("video") == {"queued": 0, "running": 0, "webhooks": 0}


async def test_pictures_are_normalised_a_few_at_once(make_video: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    def slow(data: bytes, **limits: int) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return normalise(data, **limits)

    monkeypatch.setattr("videoserve.api.pictures.normalise", slow)
    await asyncio.gather(*(make_video() for _ in range(6)))
    assert most == service.NORMALISE_AT_ONCE
