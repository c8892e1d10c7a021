"""Adapters of chats: uploaded for the chat model, named behind its name or in the field `lora`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save

from tests import adapter_bytes
from tests.echo_engine import EchoEngine
from videoserve.broker import Broker
from videoserve.config import Settings

pytestmark = pytest.mark.anyio
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def chat_settings(chat_settings: Settings) -> Settings:
    """The chat model is a Llama as far as its headers say."""
    model = Path(chat_settings.chat_model)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    weights = {f"{Q}.weight": np.zeros((8, 8), np.float32), "model.norm.weight": np.zeros(8, np.float32)}
    (model / "model.safetensors").write_bytes(save(weights))
    return chat_settings


async def upload(chat: httpx.AsyncClient, name: str, seed: int = 0, **fields: str) -> httpx.Response:
    content = adapter_bytes.file(adapter_bytes.pair(Q, width=8, seed=seed))
    return await chat.post("/v1/loras", data={"name": name} | fields, files={"file": ("a", content)})


def asked(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}]} | fields


async def test_from_an_upload_to_an_answer(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    made = await upload(chat, "style", base_model="echo")
    assert (made.status_code, made.json()["base_model"]) == (201, "echo")
    digest = made.json()["digest"]
    other = (await upload(chat, "other", 1, base_model="echo")).json()["digest"]
    for fields, loras in (
        ({"model": "echo:style"}, {digest: 1.0}),
        ({"model": "echo:style@1"}, {digest: 1.0}),
        ({"lora": [{"name": "style", "scale": 0.5}]}, {digest: 0.5}),
        ({"model": "echo:style", "lora": [{"id": made.json()["id"], "scale": -0.5}, {"name": "other"}]},
         {digest: 0.5, other: 1.0}),
        ({"model": "echo", "lora": [{"name": "style", "scale": 0}]}, {}),
    ):  # fmt: skip
        answer = await chat.post("/v1/chat/completions", json=asked(**fields))
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == fields.get("model", "echo")
        plan = echo.plans[-1]
        assert plan.model == "echo"
        assert {use.digest: use.weight for use in plan.loras} == loras
        assert ("adjustments" in answer.json()["receipt"]) == (not loras or len(plan.loras) > 1)
    answer = await chat.post("/v1/completions", json={"model": "echo:other", "prompt": ["one", "two"]})
    assert answer.status_code == 200
    assert [[use.digest for use in plan.loras] for plan in echo.plans[-2:]] == [[other], [other]]


async def test_models_with_adapters_are_listed(chat: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    await upload(chat, "style", base_model="echo")
    found = (await chat.get("/v1/models")).json()["data"]
    assert [(model["id"], model["parent"]) for model in found] == [
        ("demo", None), ("echo", None), ("echo:style", "echo"),
    ]  # fmt: skip
    assert (await chat.get("/v1/models/echo:style")).json() == found[2]
    assert (await chat.get("/v1/models/echo:nothing")).status_code == 404
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["demo"]


async def test_what_cannot_be_used_is_refused(chat: httpx.AsyncClient) -> None:
    await upload(chat, "style", base_model="echo")
    video = await chat.post("/v1/loras", data={"name": "moves"}, files={"file": ("a", adapter_bytes.adapter())})
    assert video.status_code == 201
    lora: Any
    for model, lora, status, param, words in (
        ("echo:nothing", None, 404, "model", "There is no model 'echo:nothing'"),
        ("echo:", None, 404, "model", "There is no model 'echo:'"),
        ("other:style", None, 404, "model", "this server has echo"),
        ("echo", [{"name": "nothing"}], 404, "lora", "There is no adapter 'nothing'"),
        ("echo:moves", None, 422, "lora", "is for demo; this is echo"),
        ("echo", [{"name": "style", "scale": 9}], 422, "lora", "from -4 to 4"),
        ("echo", [{"name": "style", "target": "high"}], 422, "lora", "two experts; echo has one"),
        ("echo", [{"scale": 1}], 422, "lora", "an id or a name"),
    ):
        answer = await chat.post("/v1/chat/completions", json=asked(model=model, lora=lora))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"].split(".")[0]) == (status, param), answer.text
        assert words in error["message"]
    # For videos it is another model's, and an upload is for those unless it says otherwise.
    assert (await upload(chat, "again")).status_code == 422
    assert (await upload(chat, "again", base_model="gpt")).status_code == 404


async def test_one_that_is_deleted_is_there_for_the_chats_that_have_it(chat: httpx.AsyncClient, broker: Broker) -> None:
    digest = (await upload(chat, "style", base_model="echo")).json()["digest"]
    # Nobody answers yet: the chat waits.
    body = asked(model="echo:style", stream=True)
    assert not await broker.references(digest)
    waiting = asyncio.create_task(chat.post("/v1/chat/completions", json=body))
    while not await broker.references(digest):
        assert not waiting.done()
        await asyncio.sleep(0)
    assert (await chat.delete("/v1/loras/style")).status_code == 200
    refused = await chat.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "model")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_verify(chat: httpx.AsyncClient, broker: Broker) -> None:
    await upload(chat, "style", base_model="echo")
    answer = await chat.post("/v1/loras/style/verify")
    assert "no worker with echo is ready" in answer.json()["error"]["message"]
    await broker.heartbeat("w", {"kind": "chat", "ready": True, "model": "echo"}, ttl=60)
    assert (await chat.post("/v1/loras/style/verify")).json()["model"] == "echo"
