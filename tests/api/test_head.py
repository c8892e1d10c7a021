"""HEAD over real connections: the head of what GET answers, and nothing behind it."""

import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from videoserve.api import content, create, events, ops, page, videos
from videoserve.api.head import ReadRoute

# What differs from one answer to the next.
VARYING = ("date", "content-length")


@pytest.fixture
def video(live: Any, picture: bytes) -> str:
    """The id of a video that runs until it is cancelled."""
    answer = httpx.post(
        f"{live.urls[0]}/v1/videos", data={"prompt": "wait"}, files={"input_reference": ("a.png", picture)}
    )
    return str(answer.json()["id"])


@pytest.mark.parametrize(
    "path",
    [
        "/", "/web/app.js", "/web/none.js", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models",
        "/v1/workers", "/v1/videos", "/v1/videos?limit=0", "/v1/videos/{id}", "/v1/videos/{id}/receipt",
        "/v1/videos/{id}/content", "/v1/videos/none", "/nowhere",
    ],
)  # fmt: skip
def test_the_head_of_get(live: Any, video: str, path: str) -> None:
    with httpx.Client(base_url=live.urls[0]) as client:
        path = path.replace("{id}", video)
        got, head = client.get(path), client.head(path)
        assert head.status_code == got.status_code != 405
        assert head.content == b""
        headers = [{k: v for k, v in answer.headers.items() if k not in VARYING} for answer in (got, head)]
        poll = [told.pop("openai-poll-after-ms", None) for told in headers]
        assert (poll[0] is None) == (poll[1] is None)
        assert headers[0] == headers[1]
        assert int(head.headers["content-length"]) > 0


def test_nothing_follows_the_head(live: Any, video: str) -> None:
    """Two requests on one connection: a body between their answers would be read as the second one."""
    place = urlsplit(live.urls[0])
    ask = f" /v1/videos/{video} HTTP/1.1\r\nHost: {place.netloc}\r\n"
    with socket.create_connection((str(place.hostname), place.port or 80), timeout=20) as connection:
        connection.sendall(f"HEAD{ask}\r\nGET{ask}Connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, second, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert second.startswith(b"HTTP/1.1 200 OK")
    assert body.startswith(b'{"id":"video_')


def test_events_are_for_get_alone(live: Any, video: str) -> None:
    """They would be computed until the video ends, for nobody."""
    answer = httpx.head(f"{live.urls[0]}/v1/videos/{video}/events")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_what_changes_something_is_for_its_own_method(live: Any, video: str) -> None:
    for path in (f"/v1/videos/{video}/cancel", "/v1/videos/sync/x"):
        assert httpx.head(f"{live.urls[0]}{path}").status_code in (404, 405)
    assert httpx.get(f"{live.urls[0]}/v1/videos/{video}").json()["error"] is None


def test_every_route_that_only_reads_is_one_of_these() -> None:
    routes = [route for module in (create, content, events, videos, ops, page) for route in module.router.routes]
    silent = {r.path for r in routes if isinstance(r, APIRoute) and "GET" in r.methods and not isinstance(r, ReadRoute)}
    # The one has an answer of its own, the other none.
    assert silent == {"/v1/videos/{video_id}/content", "/v1/videos/{video_id}/events"}


@pytest.mark.anyio
async def test_each_operation_is_described_once(app: FastAPI) -> None:
    assert all("head" not in operations for operations in app.openapi()["paths"].values())
