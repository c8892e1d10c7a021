"""Polls over a real connection: answered again from their bytes, and never with what is no longer so."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from videoserve.api.__main__ import _config, _Server
from videoserve.api.poll import PollingApp
from videoserve.api.poll_protocol import SHORT, PollProtocol
from videoserve.config import Settings

pytestmark = pytest.mark.anyio

FRESH = "videoserve.api.poll.CALLER_FRESH_S"
Make = Callable[..., Awaitable[dict[str, Any]]]


class Client:
    """One connection; `again` counts the polls that were answered from their bytes."""

    def __init__(self, app: PollingApp, server: _Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.app = app
        self.server = server
        self.reader = reader
        self.writer = writer
        self.again = 0

    def send(self, *pieces: str) -> None:
        for piece in pieces:
            self.writer.write(piece.encode())

    async def answer(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return (
            int(status.split()[1]),
            headers,
            json.loads(await self.reader.readexactly(int(headers["content-length"]))),
        )

    async def ask(self, request: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        self.send(request)
        return await self.answer()

    async def remembered(self, video_id: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        """The answer once this process follows the changes of the video, which its first poll starts; `again` is 0."""
        while not self.again:
            answer = await self.ask(poll(video_id))
        self.again = 0
        return answer


@pytest.fixture
async def connection(app: PollingApp, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Server(_config(app, settings))
    serving = asyncio.create_task(server.serve([listener]))
    client = Client(app, server, *await asyncio.open_connection(*listener.getsockname()))
    ours = app.polls.again

    def again(request: bytes) -> bytes | None:
        body = ours(request)
        client.again += body is not None
        return body

    monkeypatch.setattr(app.polls, "again", again)
    # Longer than a busy machine takes for any of these tests.
    monkeypatch.setattr(FRESH, 60.0)
    yield client
    client.writer.close()
    server.should_exit = True
    await serving


def poll(video_id: str, *headers: str) -> str:
    return "\r\n".join([f"GET /v1/videos/{video_id} HTTP/1.1", "Host: localhost", *headers, "", ""])


async def test_the_same_bytes_are_answered_again(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    first = await connection.remembered(video_id)
    assert (first[0], first[2]["id"]) == (200, video_id)
    assert (await connection.ask(poll(video_id)), connection.again) == (first, 1)


async def test_a_change_is_seen(connection: Client, make_video: Make, app: Any) -> None:
    video_id = (await make_video())["id"]
    await connection.remembered(video_id)
    await app.state.broker.cancel(video_id)
    assert (await connection.ask(poll(video_id)))[2]["status"] == "failed"
    await app.state.broker.delete(video_id)
    assert (await connection.ask(poll(video_id)))[0] == 404
    assert connection.again == 0


async def test_whoever_calls_is_checked_again(connection: Client, make_video: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(FRESH, 0.0)
    video_id = (await make_video())["id"]
    await connection.ask(poll(video_id))

    async def refuse(request: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(connection.app.polls, "_require", refuse)
    connection.send(poll(video_id))
    assert (await connection.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 500")
    assert connection.again == 0


async def test_other_headers_are_another_caller(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    await connection.remembered(video_id)
    for host in ("here", "here"):
        assert (await connection.ask(poll(video_id, f"X: {host}")))[0] == 200
    assert connection.again == 1


async def test_requests_in_pieces_and_in_a_row(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    request = poll(video_id)
    await connection.ask(request)
    connection.send(request[:20])
    await connection.writer.drain()
    await asyncio.sleep(0.05)
    # The rest of a request that has begun, and the bytes of a whole one that are not the start of one.
    connection.send(f"x HTTP/1.1\r\nHost: localhost\r\nX: {request[:30]}")
    await asyncio.sleep(0.05)
    connection.send("\r\n\r\n")
    assert (await connection.answer())[0] == 404
    connection.send(request, request, request)
    assert [(await connection.answer())[0] for _ in range(3)] == [200, 200, 200]


async def test_a_body_that_looks_like_a_poll(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    request = poll(video_id)
    await connection.ask(request)
    head = "POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
    connection.send(f"{head}\r\nContent-Length: {len(request)}\r\n\r\n")
    await asyncio.sleep(0.05)
    connection.send(request)
    status, _, body = await connection.answer()
    assert (status, list(body)) == (400, ["error"])


@pytest.mark.parametrize("framing", ["Content-Length: {size}", "Transfer-Encoding: chunked"])
async def test_the_body_of_a_poll_is_never_the_next_request(connection: Client, make_video: Make, framing: str) -> None:
    video_id = (await make_video())["id"]
    await connection.remembered(video_id)
    hidden = poll("video_hidden")
    head = poll(video_id, framing.format(size=len(hidden)))
    body = hidden if "{size}" in framing else f"{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n"
    for _ in range(3):
        # Answered before its body has come, so that the next segment holds a body and nothing else.
        assert (await connection.ask(head))[2]["id"] == video_id
        connection.send(body)
        assert (await connection.ask("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))[2] == {"status": "ok"}
    assert connection.again == 0


async def test_only_short_requests_are_remembered(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    await connection.remembered(video_id)
    known = len(connection.app.polls._callers)
    for name in ("X", "Authorization"):
        for _ in range(3):
            assert (await connection.ask(poll(video_id, f"{name}: " + "x" * SHORT)))[0] == 200
    assert connection.again == 0
    assert len(connection.app.polls._callers) == known


async def test_a_connection_that_ends_is_ended(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    await connection.ask(poll(video_id))
    status, headers, _ = await connection.ask(poll(video_id, "Connection: close"))
    assert (status, headers["connection"], await connection.reader.read()) == (200, "close", b"")


async def test_polls_keep_a_connection_and_silence_ends_it(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    (protocol,) = connection.server.server_state.connections
    assert isinstance(protocol, PollProtocol)
    protocol.timeout_keep_alive = 0.5
    await connection.remembered(video_id)
    for _ in range(10):
        await asyncio.sleep(0.1)
        await connection.ask(poll(video_id))
    async with asyncio.timeout(5):
        assert await connection.reader.read() == b""


async def test_a_client_that_does_not_read_fills_nothing(connection: Client, make_video: Make) -> None:
    video_id = (await make_video(prompt="pan left " + "x" * 4000))["id"]
    await connection.ask(poll(video_id))
    count = 4000
    for _ in range(count):
        connection.send(poll(video_id))
        await asyncio.sleep(0)
    answers = [await connection.answer() for _ in range(count)]
    assert {status for status, *_ in answers} == {200}


async def test_polls_are_counted(connection: Client, make_video: Make) -> None:
    video_id = (await make_video())["id"]
    for _ in range(3):
        await connection.ask(poll(video_id))
    counts = {
        tuple(values): cells
        for name, values, cells in connection.app.state.meter.snapshot()
        if name == "videoserve_http_requests"
    }
    assert counts["GET", "/v1/videos/{video_id}", "200"] == [3]
