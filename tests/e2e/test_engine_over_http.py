"""Requests that only a real engine can answer for: over HTTP, with a real broker and worker, on a tiny model."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests import picture_bytes
from videoserve.api.app import create_app
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.storage.files import FileStore
from videoserve.video import steps
from videoserve.video.engine import VideoEngine
from videoserve.worker.worker import Worker

TINY = {"name": "tiny", "sizes": [[48, 32]], "num_frames": 5, "fps": 8, "steps": 4, "guidance": 2.0, "text_length": 32}
PICTURE = picture_bytes.encode(picture_bytes.scene(48, 32), "PNG")


class Place:
    """The API and one worker in this process."""

    def __init__(self, client: httpx.AsyncClient, engine: VideoEngine):
        self.client = client
        self.engine = engine

    async def create(self, **fields: Any) -> dict[str, Any]:
        data = {"prompt": "pan left", "seed": 7} | fields
        answer = await self.client.post(
            "/v1/videos", data=data, files={"input_reference": ("a.png", PICTURE, "image/png")}
        )
        assert answer.status_code == 200, answer.text
        video: dict[str, Any] = answer.json()
        return video

    async def ended(self, video: dict[str, Any]) -> dict[str, Any]:
        end = time.monotonic() + 60
        while (video := (await self.client.get(f"/v1/videos/{video['id']}")).json())["status"] in (
            "queued",
            "in_progress",
        ):
            assert time.monotonic() < end, video
            await asyncio.sleep(0.02)
        return video

    async def mp4(self, video: dict[str, Any]) -> bytes:
        assert (await self.ended(video))["status"] == "completed"
        return (await self.client.get(f"/v1/videos/{video['id']}/content")).content

    async def receipt(self, video: dict[str, Any]) -> dict[str, Any]:
        receipt: dict[str, Any] = (await self.client.get(f"/v1/videos/{video['id']}/receipt")).json()
        return receipt


@pytest.fixture
async def place(
    broker: Broker, redis_url: str, tiny_model_dir: Callable[[str], Path], tmp_path: Path
) -> AsyncIterator[Place]:
    model = tmp_path / "tiny"
    shutil.copytree(tiny_model_dir("wan22-ti2v"), model)
    (model / "videoserve.json").write_text(json.dumps(TINY))
    settings = Settings(redis_url=redis_url, data=tmp_path, model=str(model), device="cpu", batch=2, lease_s=10.0)
    files = FileStore(tmp_path / "files")
    engine = VideoEngine(settings, files, model)
    worker = Worker(broker, files, engine, model="tiny", lease_s=10.0, drain_s=10.0)
    working = asyncio.create_task(worker.run())
    transport = httpx.ASGITransport(create_app(settings, broker, files))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield Place(client, engine)
    worker.stop()
    await working


@pytest.mark.anyio
async def test_one_out_of_memory_then_a_small_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    original = steps.velocities

    def too_large(components: Any, runs: Any) -> Any:
        if runs[0].plan.width > 64:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(components, runs)

    monkeypatch.setattr(steps, "velocities", too_large)
    large = await place.ended(await place.create(size="96x64"))
    assert (large["status"], large["error"]["code"]) == ("failed", "out_of_memory")
    assert "smaller size" in large["error"]["message"]
    assert (await place.ended(await place.create()))["status"] == "completed"
    assert place.engine.bytes_held() == 0


@pytest.mark.anyio
async def test_nan_in_the_transformer_names_the_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = steps.velocities, []

    def broken_later(components: Any, runs: Any) -> Any:
        rows = original(components, runs)
        calls.append(1)
        return [row * float("nan") for row in rows] if len(calls) == 3 else rows

    good = await place.mp4(await place.create())
    monkeypatch.setattr(steps, "velocities", broken_later)
    video = await place.ended(await place.create())
    assert (video["status"], video["error"]["code"]) == ("failed", "numerical_error")
    assert "Step 3 of 4" in video["error"]["message"]
    answer = await place.client.get(f"/v1/videos/{video['id']}/content")
    assert answer.status_code == 409
    monkeypatch.undo()
    assert await place.mp4(await place.create()) == good


@pytest.mark.anyio
async def test_two_seeds_in_one_batch_equal_their_solo_runs(place: Place) -> None:
    # Long enough for the second to be taken in beside the first.
    steps = 60
    alone = [await place.mp4(await place.create(seed=seed, num_inference_steps=steps)) for seed in (1, 2)]
    assert alone[0] != alone[1]
    pair = [await place.create(seed=seed, num_inference_steps=steps) for seed in (1, 2)]
    assert [await place.mp4(video) for video in pair] == alone
    assert 2 in (await place.receipt(pair[0]))["batch"]


@pytest.mark.anyio
@pytest.mark.parametrize("host", ["169.254.169.254", "localhost", "127.0.0.1", "[::1]", "localhost.localdomain"])
async def test_webhooks_to_private_places_are_refused(place: Place, host: str) -> None:
    answer = await place.client.post(
        "/v1/videos",
        data={"prompt": "pan left", "webhook_url": f"http://{host}/hook"},
        files={"input_reference": ("a.png", PICTURE, "image/png")},
    )
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "webhook_url"
