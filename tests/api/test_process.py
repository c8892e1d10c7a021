"""An API process as a process: over real sockets, and how it starts and ends."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.stand_in import until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VIDEOSERVE_")}
    environment |= {f"VIDEOSERVE_{name}": value for name, value in settings.items()} | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_no_torch_in_an_api_process() -> None:
    heavy = "{'torch', 'transformers', 'diffusers', 'av'}"
    done = run("-c", f"import sys, videoserve.api.__main__; print({heavy} & set(sys.modules))")
    assert (done.stdout, done.returncode) == ("set()\n", 0), done.stderr


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    done = run("-m", "videoserve.api", DATA=str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "set VIDEOSERVE_REDIS_URL" in done.stderr
    done = run("-m", "videoserve.api", DATA=str(tmp_path), REDIS_URL="redis://127.0.0.1:1/", MODEL="no/such/model")
    assert done.returncode == 2
    assert "must be demo or a diffusers directory" in done.stderr
    done = run("-m", "videoserve.api", PROT="1")
    assert done.returncode == 2
    assert "the nearest one is VIDEOSERVE_PORT" in done.stderr


def test_sixty_megabytes_are_answered(live: Any) -> None:
    """The client sends all of a body that is refused, and still gets to read why."""
    answer = httpx.post(
        f"{live.urls[0]}/v1/videos",
        content=b'{"prompt": "", "input_reference": "data:image/png;base64,' + b"A" * 60_000_000 + b'"}',
        headers={"content-type": "application/json"},
        timeout=60,
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


def test_stalled_uploads_hold_nobody(live: Any) -> None:
    """A hundred clients that stop in the middle of a chunked body: others are served, and all of them are told."""
    host, port = live.urls[0].removeprefix("http://").split(":")
    head = (
        b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    stalled = [socket.create_connection((host, int(port)), timeout=20) for _ in range(100)]
    try:
        for connection in stalled:
            connection.sendall(head + b'b\r\n{"prompt": \r\n')
        began = time.monotonic()
        assert httpx.get(f"{live.urls[0]}/v1/videos", timeout=5).status_code == 200
        assert time.monotonic() - began < 1
        for connection in stalled:
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"request_timeout" in answer
    finally:
        for connection in stalled:
            connection.close()


def test_a_refused_body_is_not_asked_for(live: Any) -> None:
    """curl waits for leave to send a large body; it gets the refusal instead."""
    host, port = live.urls[0].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/videos HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 60000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_events_resume_at_the_other_process(live: Any, data_url: str) -> None:
    """A client breaks off again and again and goes on with Last-Event-ID elsewhere: none lost, none twice."""
    body = {"prompt": "pan left", "input_reference": data_url}
    video_id = httpx.post(f"{live.urls[0]}/v1/videos", json=body).json()["id"]
    numbers: list[int] = []
    kinds: list[str] = []
    turn = 0
    while "done" not in kinds:
        headers = {"Last-Event-ID": str(numbers[-1])} if numbers else {}
        url = f"{live.urls[turn % 2]}/v1/videos/{video_id}/events"
        turn += 1
        with httpx.stream("GET", url, headers=headers, timeout=20) as stream:
            before = len(kinds)
            for line in stream.iter_lines():
                if line.startswith("id: "):
                    numbers.append(int(line[4:]))
                if line.startswith("event: "):
                    kinds.append(line[7:])
                    if len(kinds) - before == 2:
                        break
    assert numbers == sorted(set(numbers))
    everything = httpx.get(f"{live.urls[0]}/v1/videos/{video_id}/events").text
    assert [kind for kind in kinds if kind != "preview"] == [
        line[7:] for line in everything.splitlines() if line.startswith("event: ") and "preview" not in line
    ]
    assert turn > 2


def test_sync_client_that_leaves_cancels(live: Any, data_url: str) -> None:
    async def leave() -> None:
        async with httpx.AsyncClient(base_url=live.urls[0]) as client:
            body = {"prompt": "wait", "input_reference": data_url}
            waiting = asyncio.create_task(client.post("/v1/videos/sync", json=body, timeout=60))
            while not (await client.get("/v1/videos?status=in_progress")).json()["data"]:
                await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(leave())

    def cancelled() -> bool:
        [video] = httpx.get(f"{live.urls[1]}/v1/videos").json()["data"]
        return bool(video["status"] == "failed" and video["error"]["code"] == "cancelled")

    until(cancelled)


def test_polls_are_counted(live: Any, data_url: str) -> None:
    body = {"prompt": "pan left", "input_reference": data_url}
    video_id = httpx.post(f"{live.urls[0]}/v1/videos", json=body).json()["id"]
    for path in (video_id, video_id, "video_of_nobody"):
        httpx.get(f"{live.urls[0]}/v1/videos/{path}")
    page = httpx.get(f"{live.urls[0]}/metrics").text
    polls = [
        line for line in page.splitlines() if 'route="/v1/videos/{video_id}"' in line and "_requests_total" in line
    ]
    assert any('status="200"' in line for line in polls)
    assert any('status="404"' in line for line in polls)
