"""Reading videos, plans, the answer that is the video, and who sees what."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis import Redis

from videoserve.api.keys import create_key
from videoserve.api.poll import PollingApp
from videoserve.broker import Broker
from videoserve.errors import ServeError
from videoserve.types import Appetite, Event

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]
KEYS = {
    "id", "object", "model", "status", "progress", "prompt", "size", "seconds", "created_at", "completed_at",
    "expires_at", "remixed_from_video_id", "error", "stage", "eta_s", "queue_position", "fps", "num_frames", "width",
    "height", "seed", "adjustments", "receipt", "metadata", "user", "siblings",
}  # fmt: skip


async def slow_way(client: httpx.AsyncClient, video_id: str) -> httpx.Response:
    """By the router, as if there were no other way."""
    app: PollingApp = client._transport.app  # type: ignore[attr-defined]
    transport = httpx.ASGITransport(partial(FastAPI.__call__, app))
    async with httpx.AsyncClient(transport=transport, base_url=str(client.base_url)) as slow:
        return await slow.get(f"/v1/videos/{video_id}")


async def test_every_state_by_both_ways(client: httpx.AsyncClient, make_video: Make, broker: Broker) -> None:
    video_id = (await make_video(seed=1))["id"]

    async def same() -> dict[str, Any]:
        fast, slow = await client.get(f"/v1/videos/{video_id}"), await slow_way(client, video_id)
        for _ in range(100):
            if fast.json() == slow.json():
                break
            # Changes are told over another connection, in a moment.
            await asyncio.sleep(0.01)
            fast = await client.get(f"/v1/videos/{video_id}")
        assert (fast.status_code, fast.json(), fast.headers) == (slow.status_code, slow.json(), slow.headers)
        assert set(fast.json()) in (KEYS, {"error"})
        return fast.json()  # type: ignore[no-any-return]

    assert (await same())["queue_position"] == 1
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    assert (await same())["status"] == "in_progress"
    data = {"progress": 42, "step": 9, "steps": 20, "eta_s": 3.3}
    told = [Event(job_id=video_id, kind="stage", data={"stage": "denoise"})]
    await broker.record(video_id, claim.fence, [*told, Event(job_id=video_id, kind="progress", data=data)])
    video = await same()
    assert (video["progress"], video["stage"], video["eta_s"]) == (42, "denoise", 3.3)
    assert (await client.get(f"/v1/videos/{video_id}")).headers["openai-poll-after-ms"] == "330"
    await broker.finish(video_id, claim.fence, {}, {"version": 1})
    video = await same()
    assert (video["status"], video["progress"], video["receipt"]) == ("completed", 100, {"version": 1})
    await broker.delete(video_id)
    assert (await same())["error"]["code"] == "not_found"


async def test_receipt(client: httpx.AsyncClient, make_video: Make, wait_for: Make, worker: object) -> None:
    video = await wait_for((await make_video())["id"], "completed")
    receipt = (await client.get(f"/v1/videos/{video['id']}/receipt")).json()
    assert receipt == video["receipt"]
    assert receipt["stages"]["denoise"] == 0.08


async def test_sync(client: httpx.AsyncClient, data_url: str, worker: object) -> None:
    answer = await client.post("/v1/videos/sync", json={"prompt": "pan", "input_reference": data_url})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")
    assert answer.content[4:8] == b"ftyp"
    assert answer.headers["x-model"] == "demo"
    assert answer.headers["x-inference-time-s"] == "0.110"
    assert answer.headers["x-peak-memory-mb"] == "3.0"
    assert json.loads(answer.headers["x-stage-durations"])["denoise"] == 0.08
    again = await client.get(f"/v1/videos/{answer.headers['x-request-id']}/content")
    assert again.content == answer.content


async def test_sync_that_fails(client: httpx.AsyncClient, data_url: str, worker: object) -> None:
    answer = await client.post("/v1/videos/sync", json={"prompt": "fail", "input_reference": data_url})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "numerical_error")
    answer = await client.post("/v1/videos/sync", json={"prompt": "", "input_reference": data_url, "n": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "n")


async def test_sync_that_is_cancelled_or_deleted(
    client: httpx.AsyncClient, data_url: str, worker: object, wait_for: Make
) -> None:
    for end in (client.post, client.delete):
        waiting = asyncio.create_task(
            client.post("/v1/videos/sync", json={"prompt": "wait", "input_reference": data_url})
        )
        while not (listed := (await client.get("/v1/videos?status=in_progress")).json()["data"]):
            await asyncio.sleep(0.01)
        path = f"/v1/videos/{listed[0]['id']}"
        await end(path + ("/cancel" if end == client.post else ""))
        async with asyncio.timeout(10):
            answer = await waiting
        assert answer.status_code == 409


@pytest.fixture
def away(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """away("get"): the next call of this name finds the job store away for longer than a call waits."""

    def arrange(name: str) -> None:
        call = getattr(broker, name)

        def once(*told: Any) -> Any:
            monkeypatch.setattr(broker, name, call)
            raise ServeError("The job store did not answer.", status=503, code="store_unavailable")

        monkeypatch.setattr(broker, name, once)

    return arrange


@pytest.mark.parametrize("name", ["events", "get"])
async def test_sync_waits_for_the_store(
    client: httpx.AsyncClient, data_url: str, worker: object, away: Callable[[str], None], name: str
) -> None:
    away(name)
    answer = await client.post("/v1/videos/sync", json={"prompt": "pan", "input_reference": data_url})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "video/mp4")


async def test_sync_again_with_the_same_key(client: httpx.AsyncClient, data_url: str, worker: object) -> None:
    async def ask(prompt: str) -> httpx.Response:
        body = {"prompt": prompt, "input_reference": data_url}
        return await client.post("/v1/videos/sync", json=body, headers={"Idempotency-Key": "k"})

    first, again = await asyncio.gather(ask("pan"), ask("pan"))
    assert first.headers["x-request-id"] == again.headers["x-request-id"]
    assert first.content == again.content == (await ask("pan")).content
    assert (await ask("zoom")).json()["error"]["code"] == "idempotency_conflict"
    assert len((await client.get("/v1/videos")).json()["data"]) == 1


async def test_the_status_of_a_sync_that_fails_says_whose_fault_it_is(
    client: httpx.AsyncClient, data_url: str, broker: Broker
) -> None:
    expected = {
        "invalid_value": 422,
        "image_missing": 409,
        "deadline_exceeded": 504,
        "out_of_memory": 507,
        "other": 500,
    }
    for code, status in expected.items():
        body = {"prompt": "pan", "input_reference": data_url}
        waiting = asyncio.create_task(client.post("/v1/videos/sync", json=body))
        while (claim := await broker.claim("video", "w", Appetite(idle=True))) is None:
            await asyncio.sleep(0.01)
        await broker.fail(claim.job.id, claim.fence, code, "A sentence.", retry=False)
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(("store_away", "key"), [(False, ""), (True, ""), (False, "k")])
async def test_sync_whose_client_leaves(
    app: FastAPI, broker: Broker, data_url: str, away: Callable[[str], None], store_away: bool, key: str
) -> None:
    """Driven by hand: the request's body, then the news that its client has gone."""
    if store_away:
        away("cancel")
    body = json.dumps({"prompt": "wait", "input_reference": data_url}).encode()
    gone = asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"idempotency-key", key.encode())]
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/videos/sync", "raw_path": b"",
        "query_string": b"", "headers": headers, "scheme": "http", "server": ("localhost", 80), "client": ("a", 1),
        "root_path": "", "asgi": {"version": "3.0"},
    }  # fmt: skip
    serving = asyncio.create_task(app(scope, receive, send))
    while not (found := (await broker.list("local"))[0]):
        await asyncio.sleep(0.01)
    gone.set()
    async with asyncio.timeout(5):
        await serving
    state = await broker.get(found[0][0].id)
    assert state is not None
    # With a key it may come again for its video.
    assert state[1].error == (None if key else {"code": "cancelled", "message": "The job was cancelled."})


async def test_plan(client: httpx.AsyncClient, data_url: str) -> None:
    body = {"prompt": "pan", "input_reference": data_url, "num_frames": 15, "seed": 3, "n": 2}
    answer = (await client.post("/v1/plan", json=body)).json()
    assert answer["estimate_s"] is None
    assert [plan["seed"] for plan in answer["plans"]] == [3, 4]
    assert answer["plans"][0]["latent_shape"] == [32, 4, 12, 20]
    assert (await client.get("/v1/videos")).json()["data"] == []


async def test_a_plan_says_how_ranks_share_the_video(client: httpx.AsyncClient, broker: Broker, data_url: str) -> None:
    body = {"prompt": "pan", "input_reference": data_url}
    assert (await client.post("/v1/plan", json=body)).json()["parallel"] is None
    guided = {"plan": "cfg2-u4-g5", "step_s": 1.5, "measured_s": 1.4}
    plain = {"plan": "u8-g5", "step_s": 1.0, "measured_s": None}
    worker = {"kind": "video", "model": "demo", "ranks": 8, "plans": {"guided": guided, "plain": plain}}
    await broker.heartbeat("w1", worker | {"ready": False}, ttl=60)
    assert (await client.post("/v1/plan", json=body)).json()["parallel"] is None
    await broker.heartbeat("w1", worker | {"ready": True}, ttl=60)
    assert (await client.post("/v1/plan", json=body)).json()["parallel"] == {"ranks": 8, **guided}
    alone = await client.post("/v1/plan", json=body | {"guidance_scale": 1.0})
    assert alone.json()["parallel"] == {"ranks": 8, **plain}


async def test_how_workers_share_their_videos(client: httpx.AsyncClient, broker: Broker) -> None:
    choice = {"plan": "u2", "step_s": 1.5, "measured_s": 1.4}
    worker = {"kind": "video", "model": "demo", "ranks": 2, "parallel": "auto", "ready": True, "metrics": []}
    plans = {"guided": choice, "plain": choice}
    await broker.heartbeat("w1", worker | {"plans": plans}, ttl=60)
    await broker.heartbeat("w2", worker | {"plans": plans, "ready": False}, ttl=60)
    assert (await client.get("/v1/plan")).json()["data"] == [
        {"object": "worker.plan", "id": "w1", "model": "demo", "ranks": 2, "parallel": "auto", "plans": plans}
    ]


async def test_clients_do_not_see_each_other(
    client: httpx.AsyncClient, make_video: Make, broker: Broker, data_url: str
) -> None:
    mine, theirs = [{"Authorization": f"Bearer {await create_key(broker, name)}"} for name in ("me", "them")]
    await asyncio.sleep(0.3)
    body = {"prompt": "pan", "input_reference": data_url}
    video = (await client.post("/v1/videos", json=body, headers=mine | {"Idempotency-Key": "k"})).json()
    other = (await client.post("/v1/videos", json=body, headers=theirs | {"Idempotency-Key": "k"})).json()
    assert video["id"] != other["id"]
    path = f"/v1/videos/{video['id']}"
    assert (await client.get(path, headers=mine)).status_code == 200
    for method, suffix in (
        ("GET", ""), ("GET", "/content"), ("GET", "/events"), ("GET", "/receipt"), ("POST", "/cancel"), ("DELETE", ""),
    ):  # fmt: skip
        answer = await client.request(method, path + suffix, headers=theirs)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "video_id"), (method, suffix)
    assert (await client.post(f"{path}/remix", json={"prompt": ""}, headers=theirs)).status_code == 404
    assert (await client.get(f"/v1/videos?after={video['id']}", headers=theirs)).status_code == 404
    assert [v["id"] for v in (await client.get("/v1/videos", headers=theirs)).json()["data"]] == [other["id"]]
    answer = await client.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_who_may_poll_is_not_taken_from_another_header(client: httpx.AsyncClient, make_video: Make) -> None:
    path = f"/v1/videos/{(await make_video())['id']}"
    assert (await client.get(path)).status_code == 200
    nameless = client.build_request("GET", path, headers={"Authorization": "127.0.0.1:8000"})
    del nameless.headers["host"]
    assert (await client.send(nameless)).status_code == 403


async def test_a_cancelled_video_whose_worker_died_ends_without_another_worker(
    app: FastAPI,
    client: httpx.AsyncClient,
    make_video: Make,
    wait_for: Make,
    broker: Broker,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("videoserve.janitor.EXPIRE_EVERY_S", 0.05)
    video_id = (await make_video())["id"]
    assert await broker.claim("video", "dies", Appetite(idle=True)) is not None
    assert (await client.post(f"/v1/videos/{video_id}/cancel")).json()["status"] == "in_progress"
    with Redis.from_url(redis_url) as redis:
        redis.zadd("leases:video", {video_id: 1.0})
    async with app.router.lifespan_context(app):
        assert (await wait_for(video_id))["error"]["code"] == "cancelled"
