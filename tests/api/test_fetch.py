"""Pictures by URL: allowed hosts only, nothing private, bounded in bytes, time and redirects."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from videoserve.api import addresses, fetch
from videoserve.api.fetch import fetch_image
from videoserve.config import Settings
from videoserve.errors import BadImage, InvalidField, ServeError

pytestmark = pytest.mark.anyio

PICTURE = bytes(range(256)) * 4


class Site(ThreadingHTTPServer):
    """A web server of a few paths that writes down what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.asked: list[str] = []
        self.port = self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up on an endless answer is what some tests are about."""


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/picture":
            self._answer(200, PICTURE)
        elif self.path in ("/endless", "/trickle"):
            self._answer(200)
            for _ in range(1000):
                self.wfile.write(b"x" * (65536 if self.path == "/endless" else 1))
                time.sleep(0 if self.path == "/endless" else 0.05)
        elif self.path == "/silent":
            time.sleep(1)
        elif self.path == "/loop":
            self._answer(302, location="/loop")
        elif self.path.startswith("/to/"):
            self._answer(
                302, location=self.path.removeprefix("/to").removeprefix("/x/").replace("PORT", str(self.server.port))
            )
        else:
            self._answer(404)

    def _answer(self, status: int, body: bytes = b"", location: str | None = None) -> None:
        self.send_response(status)
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Silent."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.02,))
        thread.start()
        yield site
        site.shutdown()
        thread.join()


def settings(**changes: Any) -> Settings:
    return Settings(**{"image_hosts": ("127.0.0.1",), "private_hosts": ("127.0.0.1",), "body_limit": 10_000} | changes)


async def test_picture_arrives(site: Site) -> None:
    assert await fetch_image(f"http://127.0.0.1:{site.port}/picture", settings()) == PICTURE


async def test_redirect_within_allowed_hosts_is_followed(site: Site) -> None:
    assert await fetch_image(f"http://127.0.0.1:{site.port}/to/picture", settings()) == PICTURE
    assert site.asked == ["/to/picture", "/picture"]


async def test_by_default_no_host_is_allowed(site: Site) -> None:
    with pytest.raises(InvalidField, match=r"127\.0\.0\.1; allowed hosts are: none"):
        await fetch_image(f"http://127.0.0.1:{site.port}/picture", Settings())
    assert site.asked == []


async def test_allowed_host_with_a_private_address(site: Site) -> None:
    with pytest.raises(InvalidField, match="not on the public internet"):
        await fetch_image(f"http://127.0.0.1:{site.port}/picture", settings(private_hosts=()))
    assert site.asked == []


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("http://localhost:PORT/picture", "names the host localhost; allowed hosts are: 127.0.0.1"),
        ("http://169.254.169.254/latest/meta-data", "names the host 169.254.169.254"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("http://[zz]/", "could not be fetched"),
    ],
)
async def test_redirect_elsewhere_is_refused(site: Site, place: str, says: str) -> None:
    with pytest.raises(ServeError, match=says):
        await fetch_image(f"http://127.0.0.1:{site.port}/to/x/{place}", settings())
    assert len(site.asked) == 1


async def test_redirect_to_an_allowed_name_that_turned_private(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lookup(host: str, port: int, param: str) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(addresses, "_lookup", lookup)
    hosts = settings(image_hosts=("127.0.0.1", "pictures.example"))
    with pytest.raises(InvalidField, match=r"pictures\.example, which is not on the public internet"):
        await fetch_image(f"http://127.0.0.1:{site.port}/to/x/http://pictures.example:PORT/picture", hosts)
    assert len(site.asked) == 1


async def test_a_host_is_allowed_however_it_is_spelled(site: Site) -> None:
    hosts = settings(image_hosts=("LOCALHOST",), private_hosts=("LocalHost",))
    assert await fetch_image(f"http://localHost:{site.port}/picture", hosts)


async def test_endless_redirects_end(site: Site) -> None:
    with pytest.raises(BadImage, match="redirects more than 3 times"):
        await fetch_image(f"http://127.0.0.1:{site.port}/loop", settings())
    assert len(site.asked) == 4


async def test_too_many_bytes(site: Site) -> None:
    with pytest.raises(BadImage, match="more than 10000 bytes") as caught:
        await fetch_image(f"http://127.0.0.1:{site.port}/endless", settings(), param="last_image")
    assert (caught.value.status, caught.value.param) == (413, "last_image")


@pytest.mark.parametrize("path", ["/silent", "/trickle"])
async def test_too_long(site: Site, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FETCH_TIMEOUT_S", 0.3)
    with pytest.raises(BadImage, match=r"within 0\.3 s") as caught:
        await fetch_image(f"http://127.0.0.1:{site.port}{path}", settings())
    assert caught.value.status == 504


async def test_answer_other_than_success(site: Site) -> None:
    with pytest.raises(BadImage, match="answered 404"):
        await fetch_image(f"http://127.0.0.1:{site.port}/nothing", settings())


async def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(BadImage, match="the connection failed") as caught:
        await fetch_image(f"http://127.0.0.1:{port}/picture", settings(), param="reference_url")
    assert caught.value.param == "reference_url"
