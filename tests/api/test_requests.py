"""The requests that people send, each with the outcome it must have, over HTTP."""

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from videoserve.api.schemas import CreateVideo
from videoserve.broker import Broker
from videoserve.types import Appetite

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def post(client: httpx.AsyncClient, data_url: str) -> Callable[..., Awaitable[httpx.Response]]:
    async def send(**fields: Any) -> httpx.Response:
        return await client.post("/v1/videos", json={"prompt": "pan left", "input_reference": data_url} | fields)

    return send


Post = Callable[..., Awaitable[httpx.Response]]


def refused(answer: httpx.Response, status: int, param: str | None, *words: str) -> None:
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert error["param"] == param
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize(("asked", "used"), [(15, 13), (33, 33), (96, 97), (82, 81)])
async def test_num_frames(post: Post, asked: int, used: int) -> None:
    video = (await post(num_frames=asked)).json()
    assert video["num_frames"] == used
    assert any(f"num_frames is {asked}" in note for note in video["adjustments"]) == (asked != used)
    strict = await post(num_frames=asked, strict=True)
    if asked == used:
        assert strict.status_code == 200
    else:
        refused(strict, 422, "num_frames", "strict")


async def test_more_pixels_than_any_worker_could_hold(post: Post, broker: Broker) -> None:
    pixels, most = 16384 * 16384 * 10_001, 1920 * 1088 * 257
    answer = await post(size="16384x16384", num_frames=10_001)
    refused(answer, 422, "size", f"16384x16384 and 10001 frames are {pixels} pixels; at most {most}")
    assert (await broker.depth("video"))["queued"] == 0


@pytest.mark.parametrize("asked", [0, -1])
async def test_num_frames_below_one(post: Post, asked: int) -> None:
    refused(await post(num_frames=asked), 422, "num_frames", str(asked), "from 1 to")


@pytest.mark.parametrize(
    ("asked", "used"),
    [("1000x1000", "992x992"), ("130x130", "128x128"), ("1280x720", "1280x720"), ("96x160", "96x160")],
)
async def test_size(post: Post, asked: str, used: str) -> None:
    video = (await post(size=asked)).json()
    assert (video["size"], f"{video['width']}x{video['height']}") == (used, used)
    assert any(f"size is {asked}" in note for note in video["adjustments"]) == (asked != used)
    if asked != used:
        refused(await post(size=asked, strict=True), 422, "size", "strict")


@pytest.mark.parametrize(("asked", "used"), [("4", "4.125"), (4, "4.125"), ("4.5", "4.625"), (2.125, "2.125")])
async def test_seconds(post: Post, asked: object, used: str) -> None:
    answer = await post(seconds=asked)
    assert answer.json()["seconds"] == used


@pytest.mark.parametrize("asked", ["abc", "nan", "", "-1", True, [4]])
async def test_seconds_that_are_none(post: Post, asked: object) -> None:
    refused(await post(seconds=asked), 422, "seconds")


async def test_guidance_and_negative_prompt(post: Post) -> None:
    video = (await post(guidance_scale=1, negative_prompt="blur")).json()
    assert "negative_prompt is not used: guidance_scale 1 runs no negative pass." in video["adjustments"]
    video = (await post(guidance_scale=5, seed=1)).json()
    assert video["adjustments"] == []


@pytest.mark.parametrize("field", ["guidance_scale_2", "boundary_ratio"])
async def test_second_expert_fields(post: Post, field: str) -> None:
    refused(await post(**{field: 0.5}), 422, field, "two experts; demo has one")


PROMPTS = [
    "",
    "🏃‍♀️ läuft",
    "镜头向左平移",
    "e\u0301\u0323 combining",
    "zero\u200bwidth\u2060",
    "bell\u0007 nul\u0000 tab\t end\u0085",
]


@pytest.mark.parametrize("prompt", PROMPTS)
async def test_prompts_are_echoed_unharmed(post: Post, client: httpx.AsyncClient, prompt: str) -> None:
    video = (await post(prompt=prompt, seed=1, metadata={"said": prompt[:9]})).json()
    assert video["prompt"] == prompt
    assert video["metadata"] == {"said": prompt[:9]}
    again = (await client.get(f"/v1/videos/{video['id']}")).json()
    assert again["prompt"] == prompt
    assert not unicodedata.is_normalized("NFC", "e\u0301") or again == video


async def test_long_prompt_is_cut_and_told(post: Post) -> None:
    video = (await post(prompt="slowly " * 600, seed=1)).json()
    assert video["prompt"] == "slowly " * 600
    [note] = video["adjustments"]
    assert note.startswith("prompt is ")
    assert "the model reads 64" in note
    refused(await post(prompt="pan " * 9000), 422, "prompt", "32000")


async def test_prompt_with_half_a_surrogate(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/videos", content=b'{"prompt": "\\ud83d"}', headers=headers)
    refused(answer, 400, None, "not JSON")


@pytest.mark.parametrize("seed", [0, 2**31, 2**63, 2**64 - 1, "7"])
async def test_seeds(post: Post, seed: object) -> None:
    video = (await post(seed=seed)).json()
    assert video["seed"] == int(str(seed))
    assert video["adjustments"] == []


@pytest.mark.parametrize("seed", [-1, None])
async def test_random_seeds(post: Post, seed: object) -> None:
    first, second = [(await post(seed=seed)).json() for _ in range(2)]
    assert first["seed"] != second["seed"]
    assert str(first["seed"]) in first["adjustments"][0]


@pytest.mark.parametrize("seed", [2**64, -2, 1.5, True, "x"])
async def test_seeds_that_are_none(post: Post, seed: object) -> None:
    refused(await post(seed=seed), 422, "seed")


async def test_idempotency(client: httpx.AsyncClient, data_url: str, picture: bytes) -> None:
    async def send(key: str, prompt: str) -> httpx.Response:
        body = {"prompt": prompt, "input_reference": data_url}
        return await client.post("/v1/videos", json=body, headers={"Idempotency-Key": key})

    first, again, other = await send("k", "a"), await send("k", "a"), await send("k2", "a")
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    assert first.json()["seed"] == again.json()["seed"]
    conflict = await send("k", "b")
    refused(conflict, 409, None, "another request body")
    assert conflict.json()["error"]["code"] == "idempotency_conflict"
    forms = [
        await client.post(
            "/v1/videos",
            data={"prompt": "a"},
            files={"input_reference": (name, picture, "image/png")},
            headers={"Idempotency-Key": "form"},
        )
        for name in ("a.png", "b.png")
    ]
    # Two boundaries and two file names, one request.
    assert forms[0].json()["id"] == forms[1].json()["id"]


async def test_what_was_taken_with_a_key_stays_taken(
    client: httpx.AsyncClient, data_url: str, broker: Broker, make_video: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve.api.service.COSTS_FRESH_S", -1.0)

    async def send(path: str, body: dict[str, Any], key: str = "k") -> httpx.Response:
        return await client.post(path, json=body, headers={"Idempotency-Key": key})

    body = {"prompt": "a", "input_reference": data_url, "deadline_s": 30}
    first = await send("/v1/videos", body)
    # From here on it would take too long.
    costs = {"encode": 0.5, "step": 100.0, "decode": 0.4, "write": 0.1}
    await broker.save_costs("demo", {"160x96x17:g1": costs})
    refused(await send("/v1/videos", body, "another"), 422, "deadline_s")
    assert (await send("/v1/videos", body)).json()["id"] == first.json()["id"]

    source = (await make_video())["id"]
    remix = await send(f"/v1/videos/{source}/remix", {"prompt": "b"}, "r")
    assert (await client.delete(f"/v1/videos/{source}")).status_code == 200
    assert (await send(f"/v1/videos/{source}/remix", {"prompt": "b"}, "r")).json()["id"] == remix.json()["id"]
    refused(await send(f"/v1/videos/{source}/remix", {"prompt": "b"}, "s"), 404, "video_id")


async def test_idempotent_requests_at_the_same_time(client: httpx.AsyncClient, data_url: str) -> None:
    body = {"prompt": "a", "input_reference": data_url, "n": 2}
    answers = await asyncio.gather(
        *(client.post("/v1/videos", json=body, headers={"Idempotency-Key": "k"}) for _ in range(8))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await client.get("/v1/videos")).json()["data"]) == 2


async def test_n_videos(post: Post, client: httpx.AsyncClient) -> None:
    first = (await post(n=3, seed=2**64 - 2)).json()
    assert len(first["siblings"]) == 2
    others = [(await client.get(f"/v1/videos/{sibling}")).json() for sibling in first["siblings"]]
    assert [first["seed"], *(other["seed"] for other in others)] == [2**64 - 2, 2**64 - 1, 0]
    assert [first["queue_position"], *(other["queue_position"] for other in others)] == [1, 2, 3]
    assert "its seed is 0" in others[1]["adjustments"][-1]
    assert set(others[0]["siblings"]) == {first["id"], others[1]["id"]}
    assert len((await post(num_outputs_per_prompt=2)).json()["siblings"]) == 1
    refused(await post(n=2, num_outputs_per_prompt=3), 422, "n")
    refused(await post(n=0), 422, "n")


@pytest.mark.parametrize(("name", "meant"), [("nun_frames", "num_frames"), ("promt", "prompt"), ("Seed", "seed")])
async def test_unknown_fields(post: Post, name: str, meant: str) -> None:
    refused(await post(**{name: 1}), 422, name, f"the nearest one is {meant}")
    refused(await post(extra_params={name: 1}), 422, name, f"the nearest one is {meant}")


async def test_extra_params(post: Post) -> None:
    assert (await post(extra_params={"num_frames": 33})).json()["num_frames"] == 33
    refused(await post(num_frames=33, extra_params={"num_frames": 33}), 422, "num_frames", "given twice")


async def test_extra_params_as_the_text_of_a_form(client: httpx.AsyncClient, picture: bytes) -> None:
    async def send(extra: str) -> httpx.Response:
        data = {"prompt": "pan left", "extra_params": extra}
        return await client.post("/v1/videos", data=data, files={"input_reference": ("p.png", picture)})

    assert (await send('{"num_frames": 33}')).json()["num_frames"] == 33
    refused(await send('{"num_frames": '), 422, "extra_params")
    refused(await send("33"), 422, "extra_params")


async def test_a_picture_in_extra_params_is_a_picture(post: Post, data_url: str) -> None:
    assert (await post(input_reference=None, extra_params={"input_reference": data_url})).status_code == 200
    refused(await post(extra_params={"last_image": data_url}), 422, "last_image", "first picture only")


async def test_a_character_reference_of_thousands_of_digits(post: Post) -> None:
    for name in ("prompt", "negative_prompt"):
        refused(await post(**{name: "pan &#" + "9" * 4301 + ";"}), 422, name, "character reference")


async def test_unknown_model(post: Post) -> None:
    refused(await post(model="sora-2"), 404, "model", "this server has demo")
    assert (await post(model="demo")).json()["model"] == "demo"


async def test_two_pictures(client: httpx.AsyncClient, picture: bytes, data_url: str, post: Post) -> None:
    twice = [("input_reference", ("a.png", picture)), ("input_reference", ("b.png", picture))]
    refused(await client.post("/v1/videos", data={"prompt": ""}, files=twice), 422, "input_reference", "two pictures")
    refused(await post(image_reference=data_url), 422, "image_reference", "two pictures")


async def test_body_too_large(client: httpx.AsyncClient) -> None:
    refused(await client.post("/v1/videos", json={"prompt": "x" * 2**21}), 413, None, "2097152 bytes")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 2**16

    headers = {"content-type": "application/json"}
    refused(await client.post("/v1/videos", content=chunks(), headers=headers), 413, None, "2097152 bytes")


async def test_stalled_upload_gives_up_and_holds_nobody(client: httpx.AsyncClient) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"prompt": '
        await asyncio.sleep(5)
        yield b'"a"}'

    loop = asyncio.get_running_loop()
    began = loop.time()
    stalled = asyncio.create_task(
        client.post("/v1/videos", content=chunks(), headers={"content-type": "application/json"})
    )
    await asyncio.sleep(0.05)
    assert (await client.get("/v1/videos")).status_code == 200
    assert loop.time() - began < 0.4
    answer = await stalled
    refused(answer, 408, None, "stopped coming for 0.5 seconds")
    assert answer.headers["connection"] == "close"
    assert loop.time() - began < 2


async def test_delete_while_running(client: httpx.AsyncClient, make_video: Make, broker: Broker) -> None:
    video = await make_video()
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    answer = await client.delete(f"/v1/videos/{video['id']}")
    assert answer.json() == {"id": video["id"], "object": "video.deleted", "deleted": True}
    assert await broker.cancelled([video["id"]]) == [video["id"]]
    for path in ("", "/content", "/events", "/receipt"):
        refused(await client.get(f"/v1/videos/{video['id']}{path}"), 404, "video_id", "no video")
    refused(await client.delete(f"/v1/videos/{video['id']}"), 404, "video_id")


async def test_cancel_twice(client: httpx.AsyncClient, make_video: Make) -> None:
    video = await make_video()
    answers = [await client.post(f"/v1/videos/{video['id']}/cancel") for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert answers[0].json()["status"] == "failed"
    assert answers[0].json()["error"] == {"code": "cancelled", "message": "The job was cancelled."}


@pytest.mark.usefixtures("worker")
async def test_cancel_when_done(client: httpx.AsyncClient, make_video: Make, wait_for: Make) -> None:
    video = await make_video()
    await wait_for(video["id"], "completed")
    refused(await client.post(f"/v1/videos/{video['id']}/cancel"), 409, None, "is completed")


@pytest.mark.usefixtures("worker")
async def test_cancel_while_running(client: httpx.AsyncClient, make_video: Make, wait_for: Make) -> None:
    video = await make_video(prompt="wait")
    await wait_for(video["id"], "in_progress")
    assert (await client.post(f"/v1/videos/{video['id']}/cancel")).status_code == 200
    ended = await wait_for(video["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "cancelled")


async def test_content_while_queued(client: httpx.AsyncClient, make_video: Make) -> None:
    video = await make_video()
    refused(await client.get(f"/v1/videos/{video['id']}/content"), 409, None, "is queued")
    refused(await client.get(f"/v1/videos/{video['id']}/receipt"), 409, None, "is queued")


async def test_list_pages(client: httpx.AsyncClient, make_video: Make) -> None:
    made = [(await make_video())["id"] for _ in range(5)]
    page = (await client.get("/v1/videos?limit=2")).json()
    assert [video["id"] for video in page["data"]] == made[:2:-1]
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == ("list", True, made[4], made[3])
    page = (await client.get(f"/v1/videos?limit=3&after={made[3]}")).json()
    assert [video["id"] for video in page["data"]] == made[2::-1]
    assert page["has_more"] is False
    ascending = (await client.get("/v1/videos?order=asc&limit=1")).json()
    assert ascending["first_id"] == made[0]
    await client.post(f"/v1/videos/{made[2]}/cancel")
    failed = (await client.get("/v1/videos?status=failed")).json()
    assert [video["id"] for video in failed["data"]] == [made[2]]
    empty = (await client.get("/v1/videos?status=completed")).json()
    assert (empty["data"], empty["first_id"], empty["last_id"], empty["has_more"]) == ([], None, None, False)


async def test_list_limits(client: httpx.AsyncClient, make_video: Make) -> None:
    await make_video()
    refused(await client.get("/v1/videos?limit=0"), 422, "limit")
    refused(await client.get("/v1/videos?limit=x"), 422, "limit")
    refused(await client.get("/v1/videos?order=up"), 422, "order", "'asc' or 'desc'")
    refused(await client.get("/v1/videos?status=cancelled"), 422, "status")
    refused(await client.get("/v1/videos?limit=2&oder=asc"), 422, "oder", "the nearest one is order")
    page = (await client.get("/v1/videos?limit=10000")).json()
    assert len(page["data"]) == 1
    assert page["adjustments"] == ["limit is 10000; a page has at most 100: 100 is used."]
    refused(await client.get("/v1/videos?after=video_of_nobody"), 404, "after")


@pytest.mark.parametrize(
    "url",
    ["http://169.254.169.254/latest/meta-data", "http://localhost/hook", "http://127.0.0.1:9/", "file:///etc/passwd"],
)
async def test_private_webhooks(post: Post, url: str) -> None:
    refused(await post(webhook_url=url), 422, "webhook_url")


async def test_deadline_from_measured_costs(post: Post, broker: Broker, client: httpx.AsyncClient) -> None:
    costs = {"160x96x17:g1": {"encode": 0.5, "step": 0.2, "decode": 0.4, "write": 0.1}}
    await broker.save_costs("demo", costs)
    answer = await post(deadline_s=4)
    refused(answer, 422, "deadline_s", "takes about 5.0 seconds")
    assert answer.json()["error"]["code"] == "deadline_unreachable"
    video = (await post(deadline_s=6)).json()
    assert video["eta_s"] == 5.0
    polled = await client.get(f"/v1/videos/{video['id']}")
    assert polled.headers["openai-poll-after-ms"] == "500"


async def test_queue_full(app: FastAPI, post: Post) -> None:
    for name, words in (("queue_limit", "jobs wait"), ("key_queue_limit", "your jobs")):
        changed = app.state.settings.model_copy(update={name: 1})
        app.state.service.settings = changed
        app.state.auth._settings = changed
        await post()
        answer = await post()
        refused(answer, 429, None, words)
        assert answer.json()["error"]["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1


async def test_null_is_not_said(post: Post) -> None:
    optional = {name: None for name in CreateVideo.model_fields if name not in ("prompt", "input_reference")}
    kept = {"n": 1, "resize_mode": "crop", "strict": False, "priority": 0, "seed": 1}
    video = (await post(**optional | kept)).json()
    plain = (await post(seed=1)).json()
    for name in ("id", "created_at", "queue_position"):
        del video[name], plain[name]
    assert video == plain


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "12x"}, "size"),
        ({"width": 128}, "height"),
        ({"fps": 0}, "fps"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"guidance_scale": "much"}, "guidance_scale"),
        ({"resize_mode": "zoom"}, "resize_mode"),
        ({"quality": "best"}, "quality"),
        ({"priority": 1000}, "priority"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": "[1]"}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"last_image": "data:,"}, "last_image"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"seconds": 4, "num_frames": 81, "fps": 8}, "seconds"),
    ],
)
async def test_values_that_cannot_be_used(post: Post, fields: dict[str, Any], param: str) -> None:
    answer = await post(**fields)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["param"] == param
