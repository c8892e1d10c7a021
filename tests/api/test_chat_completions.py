"""POST /v1/chat/completions with an engine that answers with what was said last."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.echo_engine import EchoEngine
from videoserve.api.chat_schemas import UNSUPPORTED
from videoserve.broker import Broker

pytestmark = pytest.mark.anyio
URL = "/v1/chat/completions"


def body(text: str = "Hello there", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | fields


async def ask(chat: httpx.AsyncClient, text: str = "Hello there", **fields: Any) -> dict[str, Any]:
    answer = await chat.post(URL, json=body(text, **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def refused(chat: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await chat.post(URL, json=body() | fields)
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


async def chunks(chat: httpx.AsyncClient, text: str = "Hello there", **fields: Any) -> list[dict[str, Any]]:
    answer = await chat.post(URL, json=body(text, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert told[-1] == "[DONE]"
    return [json.loads(line) for line in told[:-1]]


def text_of(told: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in told for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_whole_answer(chat: httpx.AsyncClient, echo: EchoEngine, broker: Broker) -> None:
    found = await ask(chat, model="echo", seed=5)
    assert found["id"].startswith("chatcmpl-")
    assert (found["object"], found["model"]) == ("chat.completion", "echo")
    [choice] = found["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello there", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert found["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 4,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert found["receipt"] == {"seed": 5, "first_token_s": 0.1, "total_s": 0.2, "preemptions": 0}
    # Nothing is kept of a chat that was answered.
    assert await broker.get(found["id"]) is None


async def test_a_stream(chat: httpx.AsyncClient, echo: EchoEngine, broker: Broker) -> None:
    told = await chunks(chat, "Grüße 👋 aus Köln")
    assert text_of(told) == "Grüße 👋 aus Köln"
    assert {(chunk["object"], chunk["model"]) for chunk in told} == {("chat.completion.chunk", "echo")}
    assert len({chunk["id"] for chunk in told}) == 1
    assert told[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None] * (len(told) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in told)
    assert await broker.get(told[0]["id"]) is None


async def test_a_stream_with_usage(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    told = await chunks(chat, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in told[:-1]] == [None] * (len(told) - 1)
    assert told[-1]["choices"] == []
    assert told[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert told[-1]["usage"]["total_tokens"] == 11


async def test_several_continuations(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    found = await ask(chat, n=3)
    assert [(c["index"], c["message"]["content"]) for c in found["choices"]] == [(i, "Hello there") for i in range(3)]
    told = await chunks(chat, n=3)
    assert [text_of(told, index) for index in range(3)] == ["Hello there"] * 3


async def test_a_length_that_is_reached(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        found = await ask(chat, **{name: 2})
        assert (found["choices"][0]["message"]["content"], found["choices"][0]["finish_reason"]) == ("Hello ", "length")


async def test_logprobs(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    found = await ask(chat, "äbc", logprobs=True, top_logprobs=2)
    expected = {
        "token": "äbc",
        "logprob": -0.5,
        "bytes": [195, 164, 98, 99],
        "top_logprobs": [
            {"token": "äbc", "logprob": -0.5, "bytes": [195, 164, 98, 99]},
            {"token": "?", "logprob": -1.5, "bytes": [63]},
        ],
    }
    assert found["choices"][0]["logprobs"] == {"content": [expected], "refusal": None}
    assert echo.plans[-1].logprobs == 2
    told = await chunks(chat, "äbc", logprobs=True)
    assert [c["logprobs"]["content"] for chunk in told for c in chunk["choices"] if c["logprobs"]] == [[expected]]
    assert (await ask(chat))["choices"][0]["logprobs"] is None


async def test_every_field_reaches_the_engine(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    fields = {
        "temperature": 0, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1.5,
        "repetition_penalty": 1.1, "seed": 9, "logit_bias": {"5": -100}, "stop": ["a", "b"], "stop_token_ids": [3],
        "ignore_eos": True, "max_tokens": 50, "chat_template_kwargs": {"enable_thinking": False}, "user": "u",
        "priority": 3, "deadline_s": 60,
    }  # fmt: skip
    await ask(chat, **fields)
    plan = echo.plans[-1].to_dict()
    assert {name: plan[name] for name in fields if name in plan} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items() if name in plan
    }
    assert plan["stop_tokens"] == (3,)
    assert plan["template"] == {"enable_thinking": False}
    job = echo.jobs[-1]
    assert (job.priority, job.deadline) == (3, job.created_at + 60)
    await ask(chat, stop="end", seed=-1, top_k=-1)
    assert (echo.plans[-1].stop, echo.plans[-1].top_k) == (("end",), 0)
    # Null is as if it were left out.
    await ask(chat, **dict.fromkeys(fields), tools=None, response_format=None, audio=None, store=None)
    assert echo.plans[-1].temperature == 1.0


async def test_messages_as_templates_read_them(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
    ]
    await ask(chat, messages=messages)
    assert echo.plans[-1].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "me"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
    )


@pytest.mark.parametrize(
    ("shape", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "array"}, "strict": True}},
            {"type": "json_schema", "schema": {"type": "array"}},
        ),
    ],
)
async def test_response_format_is_a_grammar(
    chat: httpx.AsyncClient, echo: EchoEngine, shape: dict[str, Any], grammar: dict[str, Any] | None
) -> None:
    await ask(chat, response_format=shape)
    assert echo.plans[-1].grammar == grammar


async def test_unknown_fields_are_refused_with_the_nearest_one(chat: httpx.AsyncClient) -> None:
    error = await refused(chat, temprature=1)
    assert error["message"] == "There is no field 'temprature'; the nearest one is temperature."
    assert (error["param"], error["code"]) == ("temprature", "unknown_field")
    error = await refused(chat, messages=[{"role": "user", "content": "a", "contents": "b"}])
    assert error["param"] == "messages.0.contents"


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
async def test_fields_of_others_are_refused_by_name(chat: httpx.AsyncClient, name: str) -> None:
    error = await refused(chat, **{name: "x"})
    assert (error["code"], error["param"]) == ("unsupported_field", name)
    assert error["message"].startswith(f"The field {name} is not supported here: ")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "user"}]}, "messages.0", "its content is missing"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages.0.role", "'bot'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0", "tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0", "reads text only",
        ),
        ({"temperature": 3}, "temperature", "3"),
        ({"temperature": "1"}, "temperature", "'1'"),
        ({"temperature": True}, "temperature", "True"),
        ({"n": 0}, "n", "0"),
        ({"n": 17}, "n", "17"),
        ({"top_p": 0}, "top_p", "0"),
        ({"seed": 2**64}, "seed", "from -1 to 18446744073709551615"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "its other name"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs: true"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]", "'a'"),
        ({"tool_choice": "required"}, "tool_choice", "tools is empty"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "goes with the type"),
        ({"stop": [""]}, None, ""),
    ],
)  # fmt: skip
async def test_values_that_cannot_be_used(
    chat: httpx.AsyncClient, fields: dict[str, Any], param: str | None, words: str
) -> None:
    error = await refused(chat, **fields)
    assert error["code"] == "invalid_value"
    assert param is None or error["param"] == param
    assert words in error["message"]


async def test_models(chat: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    found = (await chat.get("/v1/models")).json()["data"]
    assert [(model["id"], model["kind"], model["object"]) for model in found] == [
        ("demo", "video", "model"),
        ("echo", "chat", "model"),
    ]
    assert (await chat.get("/v1/models/echo")).json() == found[1]
    missing = await chat.get("/v1/models/other")
    assert missing.status_code == 404
    assert "this server has demo, echo" in missing.json()["error"]["message"]
    # A server without a chat model says how it would get one.
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["demo"]


async def test_other_models_and_none(chat: httpx.AsyncClient, client: httpx.AsyncClient) -> None:
    for name, words in (("gpt", "this server has echo"), ("echo:style", "There is no model 'echo:style'")):
        answer = await chat.post(URL, json=body(model=name))
        assert answer.status_code == 404
        assert words in answer.json()["error"]["message"]
    answer = await client.post(URL, json=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_chat_model")
    assert answer.json()["error"]["message"] == "Chat is off: chat_model is none."


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_refuses_is_an_http_error(
    chat: httpx.AsyncClient, echo: EchoEngine, stream: bool
) -> None:
    answer = await chat.post(URL, json=body("please refuse", stream=stream))
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "The prompt has 9000 tokens, and at most 8192 fit here.",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }


async def test_what_fails_in_the_middle(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    answer = await chat.post(URL, json=body("this will break", stream=True))
    assert answer.status_code == 200
    last = [line for line in answer.text.split("\n\n") if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "not_finite"
    answer = await chat.post(URL, json=body("this will break"))
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


async def test_a_conversation_is_not_a_video(chat: httpx.AsyncClient, echo: EchoEngine, broker: Broker) -> None:
    asking = asyncio.create_task(ask(chat, "endless"))
    await until(lambda: bool(echo.held))
    [job_id] = echo.held
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events"), ("GET", "/receipt")):
        answer = await chat.request(method, f"/v1/videos/{job_id}{path}")
        assert answer.status_code == 404, (method, path)
    assert (await chat.get("/v1/videos")).json()["data"] == []
    assert list(echo.held) == [job_id]
    await broker.cancel(job_id)
    with pytest.raises(AssertionError, match="cancelled"):
        await asking


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_chat(
    chat_app: FastAPI, echo: EchoEngine, broker: Broker, stream: bool
) -> None:
    leaving = asyncio.Event()
    sent: list[dict[str, Any]] = []
    asked = [{"type": "http.request", "body": json.dumps(body("endless", stream=stream)).encode()}]

    async def receive() -> dict[str, Any]:
        if asked:
            return asked.pop()
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": URL, "raw_path": URL.encode(), "query_string": b"",
        "headers": headers, "scheme": "http", "http_version": "1.1", "asgi": {"version": "3.0"},
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    serving = asyncio.create_task(chat_app(scope, receive, send))  # type: ignore[arg-type]
    await until(lambda: bool(echo.held) and (not stream or len(sent) > 3))
    leaving.set()
    await serving
    await until(lambda: not echo.held and len(echo.cancelled) == 1)
    found = await broker.get(echo.cancelled[0])
    assert found is None or found[1].status in ("in_progress", "failed")


async def test_a_client_that_leaves_before_its_turn(chat: httpx.AsyncClient, broker: Broker) -> None:
    asking = asyncio.create_task(chat.post(URL, json=body()))
    await until_queued(broker, 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until_queued(broker, 0)


async def until_queued(broker: Broker, count: int) -> None:
    async with asyncio.timeout(20):
        while (await broker.depth("chat"))["queued"] != count:
            await asyncio.sleep(0.01)


async def until(reached: Any) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.01)
