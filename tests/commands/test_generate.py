"""`videoserve generate --server`: what is shown while others are ahead."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from tests import picture_bytes
from tests.stand_in import COSTS, StandInThread
from videoserve.api.app import create_app
from videoserve.broker import Broker
from videoserve.cli import app
from videoserve.commands.client import Client
from videoserve.commands.progress import VideoProgress
from videoserve.config import Settings
from videoserve.storage.files import FileStore


class Serving(uvicorn.Server):
    """An API in a thread of its own; `cut` breaks off every connection."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for connection in list(self.server_state.connections):
            self.loop.call_soon_threadsafe(connection.transport.abort)  # type: ignore[union-attr]

    async def run_on(self, settings: Settings) -> None:
        assert settings.redis_url is not None
        self.loop = asyncio.get_running_loop()
        broker = Broker.from_settings(settings)
        await broker.save_costs("demo", {"160x96x17:g1": COSTS})
        self.config.app = create_app(settings, broker, FileStore(settings.data / "files"))
        await self.serve()
        await broker.close()


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[Serving]:
    settings = Settings(redis_url=redis_url, data=tmp_path)
    server = Serving(uvicorn.Config("", port=0, log_level="warning", timeout_graceful_shutdown=1, ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.run_on(settings)))
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    yield server
    server.should_exit = True
    thread.join(20)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(picture_bytes.encode(picture_bytes.scene(160, 96), "PNG"))
    return path


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the bar says, one entry for each change."""
    lines: list[str] = []

    def note(name: str) -> None:
        real: Callable[..., None] = getattr(VideoProgress, name)

        def told(self: VideoProgress, *words: Any) -> None:
            real(self, *words)
            task = self._bar.tasks[0]
            line = f"{task.description} {task.percentage:.0f}% {task.fields['left']}".strip()
            if line not in lines[-1:]:
                lines.append(line)

        monkeypatch.setattr(VideoProgress, name, told)

    note("waits")
    note("tell")
    return lines


def test_others_ahead_are_shown(server: Serving, redis_url: str, photo: Path, tmp_path: Path, shown: list[str]) -> None:
    with Client(server.url, None) as client:
        for _ in range(2):
            client.create(photo, {"prompt": "wait", "num_inference_steps": 100}, once=str(time.monotonic()))
    worker = StandInThread(redis_url, tmp_path)

    def others_end() -> None:
        """While the command waits: its connection breaks, the first video is cancelled, a worker comes."""
        for line, do in (("queued, 2 ahead", server.cut), ("queued, 2 ahead", cancel), ("queued, 1 ahead", cancel)):
            end = time.monotonic() + 20
            while not any(line in told for told in shown):
                assert time.monotonic() < end
                time.sleep(0.01)
            do()
        while not any("queued, next" in told for told in shown):
            time.sleep(0.01)
        worker.start()

    def cancel() -> None:
        oldest = httpx.get(f"{server.url}/v1/videos?order=asc&status=queued&limit=1").json()["data"][0]
        httpx.post(f"{server.url}/v1/videos/{oldest['id']}/cancel")

    helper = threading.Thread(target=others_end)
    helper.start()
    output = tmp_path / "out.mp4"
    answer = CliRunner().invoke(app, ["generate", str(photo), "pan left", "-o", str(output), "--server", server.url])
    helper.join(20)
    worker.end()
    assert answer.exit_code == 0, answer.output
    assert output.read_bytes()[4:8] == b"ftyp"
    # Twice 2.03 s ahead, then 0.43 s of its own.
    assert shown[:3] == [
        "queued, 2 ahead 0% about 4 s left",
        "queued, 1 ahead 0% about 2 s left",
        "queued, next 0% about 0 s left",
    ]
    assert shown[3].startswith("encode 0%")
    assert shown[-1].startswith("denoise 100%")


def test_a_server_that_went_is_told(server: Serving, photo: Path, shown: list[str]) -> None:
    def end() -> None:
        while not shown:
            time.sleep(0.01)
        server.should_exit = True

    helper = threading.Thread(target=end)
    helper.start()
    url = server.url
    answer = CliRunner().invoke(app, ["generate", str(photo), "pan left", "--server", url])
    helper.join(20)
    assert answer.exit_code == 3
    assert f"No server answers at {url}" in answer.output
