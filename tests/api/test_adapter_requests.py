"""The field `lora` of a request: what its names mean, in each encoding, and what a job keeps of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.adapter_bytes import adapter
from videoserve.broker import Broker
from videoserve.janitor import sweep_adapters

pytestmark = pytest.mark.anyio
Add = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def post(client: httpx.AsyncClient, data_url: str) -> Callable[..., Awaitable[httpx.Response]]:
    async def send(**fields: Any) -> httpx.Response:
        body = {"prompt": "pan left", "input_reference": data_url, "seed": 1} | fields
        return await client.post("/v1/videos", json=body)

    return send


@pytest.fixture
def planned(broker: Broker) -> Callable[[httpx.Response], Awaitable[list[dict[str, Any]]]]:
    """await planned(answer) -> the adapters in the plan of the job that the answer tells of."""

    async def read(answer: httpx.Response) -> list[dict[str, Any]]:
        assert answer.status_code == 200, answer.text
        found = await broker.get(answer.json()["id"])
        assert found is not None
        return list(found[0].plan["loras"])

    return read


@pytest.fixture
async def digests(add: Add) -> dict[str, str]:
    return {name: (await add(adapter(ord(name)), name=name)).json()["digest"] for name in "ab"}


async def test_three_encodings(
    client: httpx.AsyncClient, post: Any, planned: Any, digests: dict[str, str], picture: bytes
) -> None:
    asked = [{"id": "a", "scale": 0.5}, {"id": "b", "scale": -1.0}]
    wanted = sorted(
        [
            {"digest": digests["a"], "weight": 0.5, "target": "all"},
            {"digest": digests["b"], "weight": -1.0, "target": "all"},
        ],
        key=lambda use: str(use["digest"]),
    )
    assert await planned(await post(lora=asked)) == wanted
    assert await planned(await post(lora=asked[::-1])) == wanted
    file = {"input_reference": ("a.png", picture)}
    answer = await client.post("/v1/videos", data={"prompt": "", "lora": json.dumps(asked)}, files=file)
    assert await planned(answer) == wanted
    # Rows, and the columns of the official client.
    rows = {"lora[0][id]": "a", "lora[0][scale]": "0.5", "lora[1][name]": "b", "lora[1][scale]": "-1"}
    columns = {"lora[][id]": ["a", "b"], "lora[][scale]": ["0.5", "-1.0"]}
    for fields in (rows, columns):
        answer = await client.post("/v1/videos", data={"prompt": ""} | fields, files=file)
        assert await planned(answer) == wanted
    answer = await client.post(
        "/v1/videos", data={"prompt": "", "extra_params": json.dumps({"lora": asked})}, files=file
    )
    assert await planned(answer) == wanted


async def test_scales(post: Any, planned: Any, digests: dict[str, str]) -> None:
    assert [use["weight"] for use in await planned(await post(lora=[{"name": "a"}]))] == [1.0]
    for none in ([], None, [{"name": "a", "scale": 0}]):
        assert await planned(await post(lora=none)) == []
    zero = await post(lora=[{"name": "a", "scale": 0}])
    assert "The adapter a@1 has scale 0: it changes nothing and is left out." in zero.json()["adjustments"]
    twice = await post(lora=[{"name": "a", "scale": 0.5}, {"id": digests["a"], "scale": 0.25}])
    assert [use["weight"] for use in await planned(twice)] == [0.75]
    assert "a@1 and a@1 are one adapter: their scales are added up to 0.75." in twice.json()["adjustments"]


UNASKABLE: list[tuple[Any, int, str, str]] = [
    ([{"name": "a", "scale": 5}], 422, "lora", "from -4 to 4"),
    ([{"name": "a", "scale": "nan"}], 422, "lora", "scale of a@1 is nan"),
    ('[{"name": "a", "scale": NaN}]', 422, "lora", "cannot be used"),
    ([{"name": "a", "scale": "inf"}], 422, "lora", "from -4 to 4"),
    ([{"name": "a", "scale": True}], 422, "lora.0.scale", "not true or false"),
    ([{"name": "a", "scale": "x"}], 422, "lora.0.scale", "valid number"),
    ([{"name": "a", "target": "high"}], 422, "lora", "demo has one"),
    ([{"name": "a", "target": "middle"}], 422, "lora.0.target", "'all', 'high' or 'low'"),
    ([{"name": "c"}], 404, "lora", "no adapter 'c'"),
    ([{"name": "a@2"}], 404, "lora", "no adapter 'a@2'"),
    ([{"name": "../a"}], 404, "lora", "no adapter '../a'"),
    ([{"scale": 1}], 422, "lora.0", "an id or a name"),
    ([{"id": "a", "name": "a"}], 422, "lora.0", "not both"),
    ([{"path": "/x"}], 422, "lora.0.path", "path"),
    ({"name": "a"}, 422, "lora", "valid list"),
    ("a", 422, "lora", "valid list"),
    ([{"name": "a"}] * 9, 422, "lora", "at most 8"),
]


async def test_what_cannot_be_asked(post: Any, add: Add, broker: Broker) -> None:
    await add(adapter(ord("a")), name="a")
    for lora, status, param, words in UNASKABLE:
        answer = await post(lora=lora)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), (lora, answer.text)
        assert words in answer.json()["error"]["message"], lora
    assert (await broker.depth("video"))["queued"] == 0


async def test_a_number_that_is_none_is_no_json(client: httpx.AsyncClient, data_url: str) -> None:
    body = f'{{"prompt": "", "input_reference": "{data_url}", "lora": [{{"name": "a", "scale": NaN}}]}}'
    answer = await client.post("/v1/videos", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_step_cache_and_an_adapter_for_few_steps(post: Any, add: Add, broker: Broker) -> None:
    await add(adapter(), name="fast", steps="4")
    answer = await post(lora=[{"name": "fast"}], cache="fast")
    found = await broker.get(answer.json()["id"])
    assert found is not None
    assert found[0].plan["cache"] == {"quality": "exact"}
    assert any("is made for 4 steps" in note for note in answer.json()["adjustments"])
    assert (await post(lora=[{"name": "fast"}], cache="fast", strict=True)).status_code == 422


@pytest.mark.usefixtures("worker")
async def test_a_name_means_what_it_meant_when_the_request_was_taken(
    client: httpx.AsyncClient,
    post: Any,
    planned: Any,
    add: Add,
    digests: dict[str, str],
    wait_for: Any,
) -> None:
    first = await post(lora=[{"name": "a", "scale": 0.5}])
    await add(adapter(7), name="a", replace="true")
    newer = await post(lora=[{"name": "a"}])
    assert (await planned(newer))[0]["digest"] != digests["a"] == (await planned(first))[0]["digest"]
    video = first.json()["id"]
    await wait_for(video, "completed")
    # A remix keeps the very adapters of its source, or takes those it names.
    remix = await client.post(f"/v1/videos/{video}/remix", json={"prompt": "zoom in"})
    assert await planned(remix) == await planned(first)
    remix = await client.post(f"/v1/videos/{video}/remix", json={"prompt": "", "lora": [{"name": "b"}]})
    assert [use["digest"] for use in await planned(remix)] == [digests["b"]]
    remix = await client.post(f"/v1/videos/{video}/remix", json={"prompt": "", "lora": []})
    assert await planned(remix) == []
    await client.delete("/v1/loras/a")
    remix = await client.post(f"/v1/videos/{video}/remix", json={"prompt": ""})
    assert (remix.status_code, remix.json()["error"]["param"]) == (404, "lora")
    assert "The adapter a@1 of that video is not here any more." in remix.json()["error"]["message"]


async def test_a_deleted_adapter_lives_until_its_last_job_has_ended(
    client: httpx.AsyncClient, post: Any, app: FastAPI, broker: Broker, digests: dict[str, str], data_url: str
) -> None:
    store = app.state.service.adapters.store
    # Weight 0 binds nothing, so that nothing is kept for it.
    jobs = [(await post(lora=[{"name": "a", "scale": scale}])).json()["id"] for scale in (0.5, 1.0)]
    await client.post("/v1/plan", json={"prompt": "", "input_reference": data_url, "lora": [{"name": "b"}]})
    for name in "ab":
        assert (await client.delete(f"/v1/loras/{name}")).status_code == 200
    assert (await post(lora=[{"name": "a"}])).status_code == 404
    assert (await post(lora=[{"id": digests["a"]}])).status_code == 404
    await sweep_adapters(broker, store, -1)
    # The plan that was only asked for holds its adapter for some minutes.
    assert all(store.path(digest).is_file() for digest in digests.values())
    await client.post(f"/v1/videos/{jobs[0]}/cancel")
    await sweep_adapters(broker, store, -1)
    assert store.path(digests["a"]).is_file()
    await client.delete(f"/v1/videos/{jobs[1]}")
    await sweep_adapters(broker, store, -1)
    with pytest.raises(KeyError):
        store.path(digests["a"])


async def test_a_delete_beside_requests_loses_no_adapter_of_an_accepted_one(
    client: httpx.AsyncClient, post: Any, app: FastAPI, broker: Broker, add: Add
) -> None:
    store = app.state.service.adapters.store
    for turn in range(3):
        digest = (await add(adapter(turn), name="a")).json()["digest"]

        async def remove() -> None:
            await client.delete("/v1/loras/a")
            await sweep_adapters(broker, store, 0)

        answers = await asyncio.gather(*(post(lora=[{"name": "a"}]) for _ in range(4)), remove())
        accepted = [answer for answer in answers[:-1] if answer.status_code == 200]
        assert {answer.status_code for answer in answers[:-1]} <= {200, 404}
        await sweep_adapters(broker, store, 0)
        if accepted:
            assert store.path(digest).is_file()


async def test_an_adapter_of_another_model_is_refused(app: FastAPI, post: Any, digests: dict[str, str]) -> None:
    app.state.service.adapters.target.__dict__["digest"] = "another"
    answer = await post(lora=[{"name": "a"}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "lora")
