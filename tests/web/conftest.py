"""The page in headless Chromium against the real API, with a worker whose every move a test decides."""

import asyncio
import base64
import io
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from videoserve.api.app import create_app
from videoserve.broker import Broker, Claim
from videoserve.config import Settings
from videoserve.media.mp4 import write_mp4
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Event, Output

CHROMIUM = shutil.which("chromium")
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SCREENSHOTS = os.environ.get("VIDEOSERVE_TEST_SCREENSHOTS")


class Acted:
    """A worker played by the test: it claims, tells and finishes when it is told to."""

    def __init__(self, broker: Broker, files: FileStore, folder: Path):
        self._broker = broker
        self._files = files
        self._folder = folder

    async def claim(self) -> Claim:
        for _ in range(200):
            claim = await self._broker.claim("video", "acted", Appetite(idle=True))
            if claim is not None:
                return claim
            await asyncio.sleep(0.02)
        raise AssertionError("nothing to claim")

    async def tell(self, claim: Claim, kind: Any, **data: Any) -> None:
        await self._broker.record(claim.job.id, claim.fence, [Event(job_id=claim.job.id, kind=kind, data=data)])

    async def progress(self, claim: Claim, percent: int, eta_s: float) -> None:
        await self.tell(claim, "progress", progress=percent, step=percent // 5, steps=20, eta_s=eta_s)

    async def preview(self, claim: Claim) -> None:
        picture = io.BytesIO()
        Image.fromarray(frames()[:1].repeat(3, 0).transpose(1, 0, 2, 3).reshape(96, -1, 3)).save(picture, "JPEG")
        encoded = base64.b64encode(picture.getvalue()).decode()
        await self.tell(claim, "preview", step=5, media_type="image/jpeg", base64=encoded)

    async def finish(self, claim: Claim, **receipt: Any) -> bytes:
        """Completes the job with a real mp4, which is returned."""
        path = self._folder / "made.mp4"
        write_mp4(frames(), 16, 18, path)
        movie = path.read_bytes()
        still = io.BytesIO()
        Image.fromarray(frames()[0]).save(still, "WEBP")
        outputs = {
            variant: Output(sha256=self._files.put(data), bytes=len(data), media_type=media_type)
            for variant, data, media_type in (
                ("video", movie, "video/mp4"),
                ("thumbnail", still.getvalue(), "image/webp"),
                ("spritesheet", still.getvalue(), "image/webp"),
            )
        }
        await self._broker.finish(claim.job.id, claim.fence, outputs, receipt)
        return movie

    async def fail(self, claim: Claim, code: str, message: str) -> None:
        await self._broker.fail(claim.job.id, claim.fence, code, message, False)


def frames() -> Any:
    """uint8 [17, 96, 128, 3]: a bright disc that crosses a gradient."""
    y, x = np.mgrid[0:96, 0:128]
    ground = np.stack([60 + x, 90 + y, 150 - y // 2], axis=-1)
    return np.stack(
        [np.where(((x - 20 - 5 * f) ** 2 + (y - 48) ** 2 < 300)[..., None], 240, ground) for f in range(17)]
    ).astype(np.uint8)


@pytest.fixture(scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, chromium_sandbox=False)
        yield browser
        await browser.close()


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


@pytest.fixture
def worker(broker: Broker, files: FileStore, tmp_path: Path) -> Acted:
    return Acted(broker, files, tmp_path)


class Serving(uvicorn.Server):
    """A server inside the test's own event loop, which keeps its signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture
async def server(broker: Broker, files: FileStore, tmp_path: Path) -> AsyncIterator[Serving]:
    """A real API process in all but the process."""
    app = create_app(Settings(data=tmp_path), broker, files)
    server = Serving(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1, ws="none"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = True
    await task


@pytest.fixture
def cut(server: Serving) -> Callable[[], None]:
    """cut() breaks off every connection to the server."""

    def abort() -> None:
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]

    return abort


@pytest.fixture
async def page(browser: Browser, server: Serving) -> AsyncIterator[Page]:
    """The page, open; a test fails when it logs an error or its policy stops something."""
    context = await browser.new_context(viewport={"width": 1180, "height": 860})
    page = await context.new_page()
    wrongs: list[str] = []
    page.on("pageerror", lambda error: wrongs.append(str(error)))
    page.on("console", lambda told: wrongs.append(told.text) if "Content Security Policy" in told.text else None)
    page.set_default_timeout(8000)
    await page.goto(server.url)
    yield page
    await context.close()
    assert wrongs == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "dunes.png"
    Image.fromarray(frames()[0]).resize((640, 480)).save(path)
    return path


@pytest.fixture
def shoot() -> Any:
    """shoot(page, name) keeps a screenshot in $VIDEOSERVE_TEST_SCREENSHOTS, where that is set."""

    async def save(page: Page, name: str) -> None:
        if SCREENSHOTS is not None:
            await page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)

    return save
