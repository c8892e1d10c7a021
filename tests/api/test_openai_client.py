"""The official client against a live server of two API processes."""

import asyncio
import itertools
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import httpx
import openai
import pytest
from openai.types import Video
from PIL import Image

from tests.adapter_bytes import adapter

# Its videos part announces its end with every call.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def official(live: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.urls[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_create_from_a_file(official: openai.OpenAI, picture: bytes, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(picture)
    for reference in (path, BytesIO(picture), picture, ("photo.png", picture, "image/png")):
        video = official.videos.create(prompt="pan left", input_reference=reference, size="96x96", seconds="4")  # type: ignore[arg-type]
        assert (video.object, video.model, video.size, video.seconds) == ("video", "demo", "96x96", "4.125")
        assert video.status in ("queued", "in_progress")


def test_create_with_more_fields(official: openai.OpenAI, data_url: str) -> None:
    # Its types allow an object as input_reference, but its code takes that only from extra_body.
    more = {"seed": 2**64 - 1, "metadata": {"a": "1", "b": "ü"}, "strict": True, "num_frames": 33, "fps": 11}
    video = official.videos.create(
        prompt="pan left", model="demo", extra_body={"input_reference": {"image_url": data_url}} | more
    )
    assert video.model_extra is not None
    assert video.model_extra["seed"] == 2**64 - 1
    assert video.model_extra["metadata"] == {"a": "1", "b": "ü"}
    assert (video.model_extra["num_frames"], video.seconds) == (33, "3")


def test_create_from_json(official: openai.OpenAI, data_url: str) -> None:
    body = {"prompt": "pan left", "input_reference": {"image_url": data_url}, "metadata": {"a": "1"}}
    video = official.post("/videos", body=body, cast_to=Video)
    assert (video.prompt, video.status in ("queued", "in_progress")) == ("pan left", True)


def test_adapters_in_the_form_it_sends(official: openai.OpenAI, picture: bytes, live: Any) -> None:
    for name in "ab":
        upload = {"data": {"name": name}, "files": {"file": ("a.safetensors", adapter(ord(name)))}}
        assert httpx.post(f"{live.urls[0]}/v1/loras", timeout=60, **upload).is_success  # type: ignore[arg-type]
    lora = [{"id": "a", "scale": 1.0}, {"id": "b", "scale": 0.5}, {"id": "a", "scale": 0.25}]
    video = official.videos.create(prompt="", input_reference=picture, extra_body={"lora": lora})
    assert video.model_extra is not None
    assert "a@1 and a@1 are one adapter: their scales are added up to 1.25." in video.model_extra["adjustments"]
    with pytest.raises(openai.NotFoundError) as refusal:
        official.videos.create(prompt="", input_reference=picture, extra_body={"lora": [{"id": "c"}]})
    assert refusal.value.param == "lora"


def test_create_and_poll(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create_and_poll(prompt="pan left", input_reference=picture)
    assert (video.status, video.progress, video.error) == ("completed", 100, None)
    assert video.completed_at is not None
    assert video.expires_at is not None
    assert video.created_at <= video.completed_at < video.expires_at
    assert video.model_extra is not None
    assert "The engine adds this sentence." in video.model_extra["adjustments"]
    assert video.model_extra["receipt"]["version"] == 2


def test_a_failed_video_comes_back_through_poll(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create_and_poll(prompt="fail", input_reference=picture)
    assert video.status == "failed"
    assert video.error is not None
    assert (video.error.code, video.error.message[:6]) == ("numerical_error", "Step 3")


def test_retrieve_and_its_poll_header(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create(prompt="wait", input_reference=picture)
    response = official.videos.with_raw_response.retrieve(video.id)
    assert 250 <= int(response.headers["openai-poll-after-ms"]) <= 5000
    assert response.parse().id == video.id
    official.post(f"/videos/{video.id}/cancel", cast_to=object)
    ended = official.videos.poll(video.id)
    assert ended.error is not None
    assert ended.error.code == "cancelled"
    assert "openai-poll-after-ms" not in official.videos.with_raw_response.retrieve(video.id).headers


def test_list_with_paging(official: openai.OpenAI, picture: bytes) -> None:
    made = [official.videos.create(prompt=str(number), input_reference=picture).id for number in range(5)]
    page = official.videos.list(limit=2)
    assert [video.id for video in page.data] == made[:2:-1]
    assert page.has_next_page()
    assert [video.id for video in official.videos.list(limit=2)] == made[::-1]
    assert [video.id for video in official.videos.list(limit=3, order="asc")] == made
    assert [video.prompt for video in official.videos.list(after=made[1])] == ["0"]


def test_download_each_variant(official: openai.OpenAI, picture: bytes, tmp_path: Path) -> None:
    video = official.videos.create_and_poll(prompt="pan left", input_reference=picture)
    official.videos.download_content(video.id).write_to_file(tmp_path / "video.mp4")
    with av.open(tmp_path / "video.mp4") as container:
        frames = list(container.decode(video=0))
    assert len(frames) == 9
    for variant in ("thumbnail", "spritesheet"):
        Image.open(BytesIO(official.videos.download_content(video.id, variant=variant).read())).load()  # type: ignore[arg-type]
    with official.videos.with_streaming_response.download_content(video.id) as response:
        assert b"".join(response.iter_bytes()) == (tmp_path / "video.mp4").read_bytes()


def test_remix(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create(prompt="pan left", input_reference=picture)
    remix = official.videos.remix(video.id, prompt="zoom in")
    assert (remix.prompt, remix.remixed_from_video_id, remix.size) == ("zoom in", video.id, video.size)
    assert remix.model_extra is not None
    assert video.model_extra is not None
    assert remix.model_extra["seed"] == video.model_extra["seed"]


def test_delete(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create(prompt="wait", input_reference=picture)
    deleted = official.videos.delete(video.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
    with pytest.raises(openai.NotFoundError) as refusal:
        official.videos.retrieve(video.id)
    assert refusal.value.code == "not_found"


def test_refusals_are_its_exceptions(official: openai.OpenAI, picture: bytes) -> None:
    video = official.videos.create(prompt="wait", input_reference=picture)
    with pytest.raises(openai.ConflictError):
        official.videos.download_content(video.id)
    with pytest.raises(openai.BadRequestError):
        official.videos.create(prompt="no picture")
    with pytest.raises(openai.NotFoundError, match="this server has demo"):
        official.videos.create(prompt="", input_reference=picture, model="sora-2")
    with pytest.raises(openai.APIStatusError, match="POST is not possible at /v1/videos/edits"):
        official.videos.edit(prompt="", video=picture)
    assert [model.id for model in official.models.list()] == ["demo", "echo"]


def test_async_client(live: Any, picture: bytes) -> None:
    async def drive() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{live.urls[1]}/v1", api_key="none") as client:
            videos = await asyncio.gather(
                *(client.videos.create_and_poll(prompt=str(n), input_reference=picture) for n in range(3))
            )
            assert len([video async for video in client.videos.list(limit=1)]) == 3
            return [video.status for video in videos]

    assert asyncio.run(drive()) == ["completed"] * 3


def test_replicas_answer_for_each_other(live: Any, picture: bytes) -> None:
    """Every call goes to the other process than the one before."""
    clients = [openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in live.urls]
    turns = itertools.cycle(clients)
    video = next(turns).videos.create(prompt="wait", input_reference=picture, extra_headers={"Idempotency-Key": "k"})
    again = next(turns).videos.create(prompt="wait", input_reference=picture, extra_headers={"Idempotency-Key": "k"})
    assert again.id == video.id
    next(turns).post(f"/videos/{video.id}/cancel", cast_to=object)
    assert next(turns).videos.poll(video.id).status == "failed"
    done = next(turns).videos.create_and_poll(prompt="pan", input_reference=picture)
    downloads = [next(turns).videos.download_content(done.id).read() for _ in clients]
    assert downloads[0] == downloads[1]
    next(turns).videos.delete(done.id)
    with pytest.raises(openai.NotFoundError):
        next(turns).videos.retrieve(done.id)
    assert [v.id for v in next(turns).videos.list()] == [video.id]
    for client in clients:
        client.close()
