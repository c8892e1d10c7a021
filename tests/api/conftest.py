"""The API over a real broker: in this process for most tests, as processes of its own for those of a live server."""

import asyncio
import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis import Redis

from tests import picture_bytes
from tests.echo_engine import EchoEngine, EchoThread
from tests.stand_in import StandIn, StandInThread
from videoserve.api.app import create_app
from videoserve.broker import Broker, EmbeddedRedis
from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.worker.worker import Worker

ORIGIN = "http://127.0.0.1:8000"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def picture() -> bytes:
    """A PNG of 160 × 96 pixels, one of the demo model's own sizes."""
    return picture_bytes.encode(picture_bytes.scene(160, 96), "PNG")


@pytest.fixture(scope="session")
def data_url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


@pytest.fixture
def settings(redis_url: str, tmp_path: Path) -> Settings:
    given = {"read_timeout_s": 0.5, "body_limit": 2**21, "chat_model": "none"}
    return Settings(redis_url=redis_url, data=tmp_path, **given)


@pytest.fixture
def files(settings: Settings) -> FileStore:
    return FileStore(settings.data / "files")


@pytest.fixture
def app(settings: Settings, broker: Broker, files: FileStore) -> FastAPI:
    return create_app(settings, broker, files)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client


@pytest.fixture
def add(client: httpx.AsyncClient) -> Callable[..., Awaitable[httpx.Response]]:
    """await add(content, low=…, name=…, …) -> the answer to an upload; `low` is the second file of a pair."""

    async def send(content: bytes, *, low: bytes | None = None, **fields: Any) -> httpx.Response:
        files = {"file": ("style.safetensors", content)} | ({} if low is None else {"file_low": ("low", low)})
        return await client.post("/v1/loras", data={"name": "style"} | fields, files=files)

    return send


@pytest.fixture
async def worker(broker: Broker, files: FileStore) -> AsyncIterator[StandIn]:
    """A stand-in that works while the test runs."""
    stand_in = StandIn(broker, files)
    working = asyncio.create_task(stand_in.run())
    yield stand_in
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


class Replicas:
    """API processes of one server, each on a port of its own, and the data folder they share."""

    def __init__(self, redis_url: str, data: Path, count: int):
        self.data = data
        self.redis_url = redis_url
        (data / "echo").mkdir()
        settings = {"REDIS_URL": redis_url, "DATA": str(data), "READ_TIMEOUT_S": "1", "BODY_LIMIT": "4000000"}
        settings |= {"CHAT_MODEL": str(data / "echo")}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VIDEOSERVE_")}
        environment |= {f"VIDEOSERVE_{name}": value for name, value in settings.items()}
        environment["PYTHONPATH"] = os.pathsep.join(str(ROOT / room) for room in ("", "kernels", "cache", "lora"))
        self.urls: list[str] = []
        self._processes = []
        for _ in range(count):
            listener = socket.create_server(("127.0.0.1", 0))
            self.urls.append(f"http://127.0.0.1:{listener.getsockname()[1]}")
            command = [sys.executable, "-m", "videoserve.api", "--fd", str(listener.fileno())]
            with (data / "api.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        command, env=environment, pass_fds=[listener.fileno()], stderr=log, stdout=subprocess.DEVNULL
                    )
                )
            listener.close()
        for url in self.urls:
            # The socket listens already: this waits until the process accepts.
            assert httpx.get(f"{url}/health", timeout=60).status_code == 200

    def log(self) -> str:
        return (self.data / "api.log").read_text()

    def check(self) -> None:
        """Fails, with what they wrote, when one of the processes is gone."""
        codes = [process.poll() for process in self._processes]
        assert codes == [None] * len(codes), f"They ended with {codes}:\n{self.log()}"

    def end(self) -> list[int]:
        for process in self._processes:
            process.terminate()
        return [process.wait(timeout=20) for process in self._processes]


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """On a Redis of their own, which no other test empties while they read from it."""
    with EmbeddedRedis(tmp_path_factory.mktemp("live-redis")) as server:
        running = Replicas(server.url, tmp_path_factory.mktemp("live"), 2)
        yield running
        assert running.end() == [0, 0]


@pytest.fixture
def live(replicas: Replicas) -> Iterator[Replicas]:
    """Two API processes without any video yet, and stand-ins that work."""
    replicas.check()
    with Redis.from_url(replicas.redis_url) as redis:
        for key in redis.scan_iter():
            # With a new name the jobs would be those of another Redis to a process that is slow to ask for it.
            if key != b"identity":
                redis.delete(key)
    workers = (StandInThread(replicas.redis_url, replicas.data), EchoThread(replicas.redis_url, replicas.data))
    for worker in workers:
        worker.start()
    yield replicas
    for worker in workers:
        worker.end()
    replicas.check()


@pytest.fixture
def make_video(client: httpx.AsyncClient, data_url: str) -> Any:
    """await make_video(prompt=…, …) -> the Video of a request that must succeed."""

    async def make(**fields: Any) -> dict[str, Any]:
        answer = await client.post("/v1/videos", json={"prompt": "pan left", "input_reference": data_url} | fields)
        assert answer.status_code == 200, answer.text
        video: dict[str, Any] = answer.json()
        return video

    return make


@pytest.fixture
def wait_for(client: httpx.AsyncClient) -> Any:
    """await wait_for(video_id, *statuses) -> the Video once its status is one of these."""

    async def wait(video_id: str, *statuses: str) -> dict[str, Any]:
        end = time.monotonic() + 10
        while True:
            video: dict[str, Any] = (await client.get(f"/v1/videos/{video_id}")).json()
            if video["status"] in (statuses or ("completed", "failed")):
                return video
            assert time.monotonic() < end, video
            await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def chat_settings(settings: Settings) -> Settings:
    """Of a server with a chat model, as far as the API looks at one."""
    model = settings.data / "echo"
    model.mkdir()
    return settings.model_copy(update={"chat_model": str(model)})


@pytest.fixture
def chat_app(chat_settings: Settings, broker: Broker, files: FileStore) -> FastAPI:
    return create_app(chat_settings, broker, files)


@pytest.fixture
async def chat(chat_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with the chat model "echo"."""
    transport = httpx.ASGITransport(chat_app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client:
        yield client


@pytest.fixture
async def echo(broker: Broker, files: FileStore) -> AsyncIterator[EchoEngine]:
    """The engine of a real worker that works while the test runs."""
    engine = EchoEngine()
    worker = Worker(broker, files, engine, model="echo", lease_s=10.0, drain_s=5.0)
    working = asyncio.create_task(worker.run())
    yield engine
    worker.stop()
    await working
