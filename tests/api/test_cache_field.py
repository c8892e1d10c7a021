"""The request field `cache`: its spellings over JSON and forms, what a plan makes of it, and what is refused."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from videoserve.broker import Broker

pytestmark = pytest.mark.anyio
Make = Callable[..., Awaitable[dict[str, Any]]]
Planned = Callable[..., Awaitable[httpx.Response]]

MASK = {"policy": "mask", "steps": "RR" + ".R" * 9}
LATENT = {"policy": "latent", "order": 2, "replay": True, "threshold": 0.25}


@pytest.fixture
def planned(client: httpx.AsyncClient, data_url: str) -> Planned:
    async def send(**fields: Any) -> httpx.Response:
        return await client.post("/v1/plan", json={"prompt": "pan left", "input_reference": data_url} | fields)

    return send


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        (None, {"quality": "exact"}),
        ("off", {"quality": "exact"}),
        ({}, {"quality": "exact"}),
        ({"policy": "off"}, {"quality": "exact"}),
        ("balanced", {"quality": "balanced"}),
        ({"quality": "high", "verify": True}, {"quality": "high", "verify": True}),
        ({"near": 0.9}, {"quality": "exact", "near": 0.9}),
        (MASK | {"reuse": False}, MASK | {"reuse": False}),
        ({"time_budget_s": 3}, {"time_budget_s": 3.0}),
        (LATENT, LATENT),
        (json.dumps(LATENT), LATENT),
        (MASK, MASK),
    ],
)
async def test_json(planned: Planned, said: object, plan: dict[str, Any]) -> None:
    assert (await planned(cache=said)).json()["plans"][0]["cache"] == plan


async def test_left_out(planned: Planned) -> None:
    assert (await planned()).json()["plans"][0]["cache"] == {"quality": "exact"}


@pytest.mark.parametrize(
    ("form", "plan"),
    [
        ({"cache": "fast"}, {"quality": "fast"}),
        ({"cache": json.dumps(LATENT)}, LATENT),
        ({f"cache[{name}]": str(value).lower() for name, value in LATENT.items()}, LATENT),
        ({"cache[quality]": "high", "cache[verify]": "true"}, {"quality": "high", "verify": True}),
        ({"cache[time_budget_s]": "4.5"}, {"time_budget_s": 4.5}),
        ({"extra_params": '{"cache": "high"}'}, {"quality": "high"}),
    ],
)
async def test_forms(client: httpx.AsyncClient, picture: bytes, form: dict[str, str], plan: dict[str, Any]) -> None:
    files = {"input_reference": ("a.png", picture)}
    answer = await client.post("/v1/plan", data={"prompt": "pan left"} | form, files=files)
    assert answer.json()["plans"][0]["cache"] == plan


@pytest.mark.parametrize(
    ("said", "param", "words"),
    [
        ("fastest", "cache", "one of off, exact, high, balanced, fast"),
        ({"quality": "good"}, "cache.quality", "exact, high, balanced, fast"),
        ({"policy": "teacache"}, "cache.policy", "latent"),
        ({"policy": "latent"}, "cache.threshold", "a number"),
        ({"policy": "latent", "threshold": "much"}, "cache.threshold", "'much'"),
        ({"policy": "latent", "threshold": 10**400}, "cache.threshold", "a number"),
        ({"policy": "latent", "threshold": -1}, "cache.threshold", "-1"),
        ({"policy": "latent", "threshold": 0.1, "steps": "R"}, "cache.steps", "it takes threshold"),
        ({"policy": "mask", "steps": "R-"}, "cache.steps", "R (compute it)"),
        ({"policy": "mask", "steps": "RR.R"}, "cache.steps", "is for 4 steps; this video takes"),
        ({"policy": "mask", "steps": ".R" * 10}, "cache.steps", "skips step 1"),
        ({"policy": "first_blocks", "threshold": 0.1, "first": 99}, "cache.first", "99"),
        ({"policy": "schedule", "runs": 1}, "cache.runs", "always computed"),
        ({"policy": "latent", "threshold": 0.1, "order": 3}, "cache.order", "0, 1, 2"),
        ({"quality": "high", "time_budget_s": 3}, "cache", "it takes one of"),
        ({"time_budget_s": 0}, "cache.time_budget_s", "above 0"),
        ({"threshold": 0.1}, "cache", "without cache.policy"),
        (7, "cache", "cache is 7"),
    ],
)
async def test_refused(planned: Planned, said: object, param: str, words: str) -> None:
    answer = await planned(cache=said)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (422, param), error
    assert words in error["message"]


async def test_a_remix_keeps_it_unless_it_says_otherwise(
    client: httpx.AsyncClient, make_video: Make, broker: Broker
) -> None:
    source = await make_video(cache="balanced")
    made = []
    for fields in ({}, {"cache": "exact"}, {"cache": None}):
        answer = await client.post(f"/v1/videos/{source['id']}/remix", json={"prompt": "zoom out", **fields})
        made.append(answer.json()["id"])
    found = await broker.get_many([source["id"], *made])
    plans = [one[0].plan["cache"] for one in found if one is not None]
    assert plans == [{"quality": "balanced"}, {"quality": "balanced"}, {"quality": "exact"}, {"quality": "exact"}]


async def test_a_policy_that_decides_inside_a_forward_has_forwards_of_its_own(planned: Planned) -> None:
    said = [None, "balanced", LATENT, {"policy": "first_blocks", "threshold": 0.1}]
    keys = [(await planned(cache=cache)).json()["plans"][0]["batch_key"] for cache in said]
    assert len(set(keys[:3])) == 1
    assert keys[3] not in keys[:3]


async def test_the_estimate_counts_what_is_computed(planned: Planned, broker: Broker) -> None:
    key, seconds = "160x96x17:g1", {"encode": 1.0, "step": 1.0, "decode": 1.0, "write": 1.0}
    await broker.save_costs("demo", {key: seconds})
    mask = "RR" + ".R" * 9
    whole = (await planned(num_inference_steps=20)).json()["estimate_s"]
    answer = await planned(num_inference_steps=20, cache={"policy": "mask", "steps": mask})
    assert whole - answer.json()["estimate_s"] == pytest.approx(mask.count("."))
    answer = await planned(num_inference_steps=20, cache={"policy": "mask", "steps": mask, "verify": True})
    assert answer.json()["estimate_s"] - whole == pytest.approx(mask.count("R"))


async def test_a_time_budget_below_what_the_fewest_steps_take(planned: Planned, broker: Broker) -> None:
    said = {"time_budget_s": 7.0}
    await broker.save_costs("demo", {"160x96x17:g1": dict.fromkeys(("encode", "step", "decode", "write"), 1.0)})
    answer = await planned(cache=said, num_inference_steps=20)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "invalid_value", "cache.time_budget_s")
    assert "about 8 s at least, with 5 of its 20 steps computed" in error["message"]
    assert (await planned(cache={"time_budget_s": 8.0}, num_inference_steps=20)).status_code == 200


async def test_the_schema_shows_every_way(client: httpx.AsyncClient) -> None:
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("CreateVideo", "RemixVideo"):
        ways = schemas[name]["properties"]["cache"]["anyOf"]
        policies = {way["properties"]["policy"]["const"] for way in ways if "policy" in way.get("properties", {})}
        assert policies == {"off", "mask", "latent", "first_blocks", "magnitude", "schedule"}
