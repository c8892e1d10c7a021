"""Server-sent events: order, resume, end."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.stand_in import FAILURE, STEPS
from videoserve.api import alive, events
from videoserve.broker import Broker
from videoserve.types import Appetite, Event

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]
Told = tuple[int, str, dict[str, Any]]


def read(text: str) -> list[Told]:
    """(id, event, data) of every event in a piece of stream; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if not line.startswith(":")]
        fields = {name: value for name, _, value in lines}
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


async def test_whole_story(client: httpx.AsyncClient, make_video: Make, worker: object) -> None:
    video = await make_video()
    answer = await client.get(f"/v1/videos/{video['id']}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = read(answer.text)
    assert [number for number, _, _ in told] == sorted({number for number, _, _ in told})
    kinds = [kind for _, kind, _ in told]
    assert kinds.count("progress") == STEPS + 1
    assert (kinds[0], kinds[-1]) == ("stage", "done")
    assert set(told[-1][2]["outputs"]) == {"video", "thumbnail", "spritesheet"}
    again = await client.get(f"/v1/videos/{video['id']}/events")
    # Told once more from the beginning, the previews being those that are kept.
    assert [t for t in read(again.text) if t[1] != "preview"] == [t for t in told if t[1] != "preview"]


async def test_resume(client: httpx.AsyncClient, make_video: Make, worker: object) -> None:
    video = await make_video()
    path = f"/v1/videos/{video['id']}/events"
    everything = [t for t in read((await client.get(path)).text) if t[1] != "preview"]
    for cut in (0, 1, len(everything) // 2, len(everything) - 1):
        last = str(everything[cut][0])
        for rest in (
            await client.get(path, headers={"Last-Event-ID": last}),
            await client.get(path, params={"after": last}),
        ):
            assert [t for t in read(rest.text) if t[1] != "preview"] == everything[cut + 1 :]


async def test_failure_ends_the_stream(client: httpx.AsyncClient, make_video: Make, worker: object) -> None:
    video = await make_video(prompt="fail")
    told = read((await client.get(f"/v1/videos/{video['id']}/events")).text)
    assert told[-1][1:] == ("failed", {"code": FAILURE[0], "message": FAILURE[1], "retry": False})


async def test_cancelling_ends_the_stream(client: httpx.AsyncClient, make_video: Make) -> None:
    video = await make_video()
    following = asyncio.create_task(client.get(f"/v1/videos/{video['id']}/events"))
    await asyncio.sleep(0.1)
    await client.post(f"/v1/videos/{video['id']}/cancel")
    async with asyncio.timeout(5):
        told = read((await following).text)
    assert [(kind, data["code"]) for _, kind, data in told] == [("failed", "cancelled")]


async def test_silence_is_filled(
    client: httpx.AsyncClient, make_video: Make, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = []

    async def counted(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            beats.extend([piece] if piece == alive.COMMENT else [])
            yield piece

    monkeypatch.setattr(alive, "ALIVE_S", 0.05)
    monkeypatch.setattr(events, "kept_alive", lambda pieces: counted(alive.kept_alive(pieces)))
    video = await make_video()
    following = asyncio.create_task(client.get(f"/v1/videos/{video['id']}/events"))
    async with asyncio.timeout(60):
        while len(beats) < 2:
            await asyncio.sleep(0.01)
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    checkpoint = Event(job_id=video["id"], kind="checkpoint", data={"sha256": "0" * 64, "stage": "denoise", "step": 1})
    stage = Event(job_id=video["id"], kind="stage", data={"stage": "denoise"})
    await broker.record(video["id"], claim.fence, [checkpoint, stage])
    await broker.fail(video["id"], claim.fence, "x", "No.", retry=False)
    text = (await following).text
    assert text.count(": alive") >= 2
    assert [kind for _, kind, _ in read(text)] == ["stage", "failed"]


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30, "9" * 5000, "²"])
async def test_ids_that_are_none(client: httpx.AsyncClient, make_video: Make, last: str) -> None:
    video = await make_video()
    answer = await client.get(f"/v1/videos/{video['id']}/events", headers={"Last-Event-ID": last.encode()})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "Last-Event-ID")
