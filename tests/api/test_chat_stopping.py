"""Streams of chats when the process that tells them ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from videoserve.api.chat_reply import StreamReply

pytestmark = pytest.mark.anyio


class Endless:
    """A reply of one piece, after which nothing comes."""

    jobs = ()
    left = False

    async def chunks(self) -> AsyncIterator[bytes]:
        yield b"data: first\n\n"
        await asyncio.Event().wait()

    async def leave(self) -> None:
        self.left = True


async def test_a_stream_ends_with_a_sentence() -> None:
    sent: list[dict[str, Any]] = []
    begun = asyncio.Event()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body"):
            begun.set()

    reply = Endless()
    telling = asyncio.create_task(StreamReply(reply)({}, receive, send))  # type: ignore[arg-type]
    await begun.wait()
    telling.cancel()
    await telling
    first, last, end = sent[1:]
    assert first["body"] == b"data: first\n\n"
    assert b"server_stopping" in last["body"]
    assert b"ask again" in last["body"]
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
    assert reply.left
