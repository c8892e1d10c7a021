"""Addresses that lead inside, over HTTP: by a name that resolves there, and by a redirect. Nobody inside is asked."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from videoserve.broker import Broker
from videoserve.config import Settings

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]

# What the resolver of this server answers; all but the last lead inside.
NAMES = {
    "site.test": "127.0.0.1",
    "inside.test": "127.0.0.1",
    "metadata.test": "169.254.169.254",
    "office.test": "10.1.2.3",
    "six.test": "::1",
    "mapped.test": "::ffff:127.0.0.1",
    "outside.test": "93.184.215.14",
}
INSIDE = ("inside.test", "metadata.test", "office.test", "six.test", "mapped.test")


class Inside(ThreadingHTTPServer):
    """The one server on this machine; /to/URL redirects there, /picture is one, all that is asked is written down."""

    daemon_threads = True

    def __init__(self, picture: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.picture = picture
        self.asked: list[str] = []
        self.port = self.server_address[1]


class Page(BaseHTTPRequestHandler):
    server: Inside

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        self.server.asked.append(f"{self.headers['Host'].partition(':')[0]}{self.path}")
        to = self.path.removeprefix("/to/")
        self.send_response(200 if to == self.path else 302)
        if to != self.path:
            self.send_header("Location", to)
        self.end_headers()
        self.wfile.write(self.server.picture if self.path == "/picture" else b"")

    def log_message(self, *words: object) -> None:
        """Silent."""


@pytest.fixture
def inside(picture: bytes) -> Iterator[Inside]:
    with Inside(picture) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Pictures may come from every one of the names, and site.test may be inside."""
    return settings.model_copy(update={"image_hosts": tuple(NAMES), "private_hosts": ("site.test",)})


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's, with some more names."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **options: Any) -> Any:
        return real(NAMES.get(host, host), *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
async def running(app: FastAPI) -> AsyncIterator[None]:
    """With what a process does beside its routes: it delivers webhooks."""
    async with app.router.lifespan_context(app):
        yield


def refused(answer: httpx.Response, param: str, words: str) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, param)
    assert words in error["message"]
    # Nobody learns from us how names resolve in our network.
    assert not any(address in error["message"] for address in NAMES.values())


async def create(client: httpx.AsyncClient, url: str) -> httpx.Response:
    return await client.post("/v1/videos", json={"prompt": "pan left", "input_reference": url})


async def test_a_picture_from_where_it_is_allowed(client: httpx.AsyncClient, inside: Inside) -> None:
    """What the refusals below are held against: the same server, the same picture."""
    answer = await create(client, f"http://site.test:{inside.port}/to/http://site.test:{inside.port}/picture")
    assert answer.status_code == 200, answer.text
    assert inside.asked[1:] == ["site.test/picture"]


@pytest.mark.parametrize("host", INSIDE)
async def test_a_picture_from_a_name_that_resolves_inside(client: httpx.AsyncClient, inside: Inside, host: str) -> None:
    answer = await create(client, f"http://{host}:{inside.port}/picture")
    refused(answer, "input_reference", f"leads to {host}, which is not on the public internet")
    assert inside.asked == []


@pytest.mark.parametrize("host", INSIDE)
async def test_a_picture_by_a_redirect_inside(client: httpx.AsyncClient, inside: Inside, host: str) -> None:
    answer = await create(client, f"http://site.test:{inside.port}/to/http://{host}:{inside.port}/picture")
    refused(answer, "input_reference", f"leads to {host}, which is not on the public internet")
    assert len(inside.asked) == 1


async def test_a_picture_by_a_redirect_to_a_host_that_is_not_allowed(client: httpx.AsyncClient, inside: Inside) -> None:
    answer = await create(client, f"http://site.test:{inside.port}/to/http://localhost:{inside.port}/picture")
    refused(answer, "input_reference", "names the host localhost; allowed hosts are")
    assert len(inside.asked) == 1


@pytest.mark.parametrize("host", INSIDE)
async def test_a_webhook_to_a_name_that_resolves_inside(make_video: Make, client: httpx.AsyncClient, host: str) -> None:
    body = (await make_video(seed=1))["id"]
    answer = await client.post(f"/v1/videos/{body}/remix", json={"prompt": "", "webhook_url": f"http://{host}/hook"})
    refused(answer, "webhook_url", f"leads to {host}, which is not on the public internet")
    assert (await make_video(webhook_url="https://outside.test/hook"))["status"] == "queued"


@pytest.mark.usefixtures("running", "worker")
async def test_a_webhook_by_a_redirect_inside(
    client: httpx.AsyncClient, make_video: Make, inside: Inside, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve.api.webhooks.ATTEMPTS", 1)
    hook = f"http://site.test:{inside.port}/to/http://127.0.0.1:{inside.port}/secret"
    video = await make_video(webhook_url=hook)
    async with asyncio.timeout(10):
        while (found := await broker.get(video["id"])) is None or found[1].webhook is None:
            await asyncio.sleep(0.02)
    error = "The answer was 302. Redirects are not followed."
    assert found[1].webhook == {"delivered": False, "attempts": 1, "error": error}
    assert [path.startswith("site.test/to/") for path in inside.asked] == [True]
