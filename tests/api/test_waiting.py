"""What clients of waiting videos are told: the estimate counts what is ahead, and so does the check of a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from videoserve.broker import Broker
from videoserve.types import Appetite, Event

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]

# 160x96x17 of 20 steps: 5 seconds; of 100 steps: 21; 160x96x33: about twice as much.
COSTS = {"160x96x17:g1": {"encode": 0.5, "step": 0.2, "decode": 0.4, "write": 0.1}}


async def test_the_estimate_counts_the_work_ahead(client: httpx.AsyncClient, make_video: Make, broker: Broker) -> None:
    await broker.save_costs("demo", COSTS)
    made = [await make_video(num_inference_steps=steps) for steps in (100, 20, 20)]
    assert [video["eta_s"] for video in made] == [21.0, 26.0, 31.0]
    listed = (await client.get("/v1/videos?order=asc")).json()["data"]
    assert [video["eta_s"] for video in listed] == [21.0, 26.0, 31.0]
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    data = {"progress": 50, "step": 50, "steps": 100, "eta_s": 10.2}
    await broker.record(made[0]["id"], claim.fence, [Event(job_id=made[0]["id"], kind="progress", data=data)])
    listed = (await client.get("/v1/videos?order=asc")).json()["data"]
    assert [video["eta_s"] for video in listed] == [10.2, 15.2, 20.2]
    async with asyncio.timeout(5):
        # Polls follow in their own time.
        while (polled := (await client.get(f"/v1/videos/{made[2]['id']}")).json())["eta_s"] != 20.2:
            await asyncio.sleep(0.05)
    assert polled["queue_position"] == 2


async def test_workers_that_live_are_what_shares_the_queue(make_video: Make, broker: Broker) -> None:
    await broker.save_costs("demo", COSTS)
    for worker in ("v", "w"):
        await broker.heartbeat(worker, {"kind": "video", "ready": True}, 60)
    made = [await make_video(num_inference_steps=steps) for steps in (100, 20, 20, 20)]
    assert [video["eta_s"] for video in made] == [21.0, 5.0, 10.0, 15.0]


async def test_a_deadline_where_nothing_was_measured(make_video: Make) -> None:
    await make_video()
    assert (await make_video(deadline_s=0.5))["eta_s"] is None


async def test_a_deadline_that_the_queue_makes_impossible(
    client: httpx.AsyncClient, make_video: Make, broker: Broker, data_url: str
) -> None:
    await broker.save_costs("demo", COSTS)
    for _ in range(2):
        await make_video(num_inference_steps=100)
    body = {"prompt": "pan left", "input_reference": data_url, "deadline_s": 30}
    answer = await client.post("/v1/videos", json=body)
    assert (answer.status_code, answer.json()["error"]) == (
        422,
        {
            "message": "deadline_s is 30, but this video takes about 5.0 seconds here, after about 42.0 for what is "
            "ahead of it.",
            "type": "invalid_request_error",
            "param": "deadline_s",
            "code": "deadline_unreachable",
        },
    )
    assert len((await client.get("/v1/videos")).json()["data"]) == 2
    # A plan queues nothing, and says nothing about the queue.
    assert (await client.post("/v1/plan", json=body)).json()["estimate_s"] == 5.0
    assert (await client.post("/v1/videos", json=body | {"priority": 5})).status_code == 200
    assert (await client.post("/v1/videos", json=body | {"deadline_s": 60})).status_code == 200
