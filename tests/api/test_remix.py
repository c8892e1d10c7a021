"""Remixes keep what is not said otherwise."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests import picture_bytes as made
from videoserve.broker import Broker

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def remix(client: httpx.AsyncClient) -> Callable[..., Awaitable[httpx.Response]]:
    async def send(video_id: str, **fields: Any) -> httpx.Response:
        return await client.post(f"/v1/videos/{video_id}/remix", json={"prompt": "zoom out"} | fields)

    return send


Remix = Callable[..., Awaitable[httpx.Response]]


async def test_everything_else_stays(make_video: Make, remix: Remix, broker: Broker) -> None:
    source = await make_video(size="96x96", num_frames=33, fps=11, guidance_scale=2.5, negative_prompt="blur")
    video = (await remix(source["id"])).json()
    assert video["prompt"] == "zoom out"
    assert video["remixed_from_video_id"] == source["id"]
    plans = [found[0].plan for found in await broker.get_many([source["id"], video["id"]]) if found]
    for plan in plans:
        plan.pop("prompt")
        plan["adjustments"] = [note for note in plan["adjustments"] if "seed" not in note]
    assert plans[0] == plans[1]


async def test_said_otherwise(make_video: Make, remix: Remix) -> None:
    source = await make_video(size="96x96", num_frames=33, seed=5, quality="low")
    video = (await remix(source["id"], width=128, height=128, seconds=4.125, seed=6)).json()
    assert (video["size"], video["num_frames"], video["seed"]) == ("128x128", 33, 6)
    video = (await remix(source["id"], size=None, seed=-1, n=2)).json()
    assert video["size"] == "160x96"
    assert video["seed"] != 5
    assert len(video["siblings"]) == 1


async def test_notes_about_the_picture_stay(client: httpx.AsyncClient, remix: Remix) -> None:
    part = {"input_reference": ("a.gif", made.animation("GIF"), "image/gif")}
    source = (await client.post("/v1/videos", data={"prompt": "a", "seed": "1"}, files=part)).json()
    video = (await remix(source["id"])).json()
    assert video["adjustments"] == source["adjustments"]
    assert "first frame" in video["adjustments"][0]


async def test_of_a_remix_and_of_a_failed_one(client: httpx.AsyncClient, make_video: Make, remix: Remix) -> None:
    source = await make_video()
    await client.post(f"/v1/videos/{source['id']}/cancel")
    first = (await remix(source["id"])).json()
    assert (await remix(first["id"])).json()["remixed_from_video_id"] == first["id"]


async def test_the_picture_outlives_its_first_video(client: httpx.AsyncClient, make_video: Make, remix: Remix) -> None:
    source = await make_video()
    video = (await remix(source["id"])).json()
    await client.delete(f"/v1/videos/{source['id']}")
    assert (await remix(video["id"])).status_code == 200
    assert (await remix(source["id"])).status_code == 404


async def test_refusals(make_video: Make, remix: Remix, client: httpx.AsyncClient, data_url: str) -> None:
    source = await make_video()
    for fields, status, param in (
        ({"input_reference": data_url}, 422, "input_reference"),
        ({"nun_frames": 3}, 422, "nun_frames"),
        ({"num_frames": 0}, 422, "num_frames"),
        ({"prompt": None}, 422, "prompt"),
    ):
        answer = await remix(source["id"], **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)
    answer = await client.post(f"/v1/videos/{source['id']}/remix", json={})
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, "prompt is missing.")
