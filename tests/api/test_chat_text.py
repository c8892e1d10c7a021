"""POST /v1/completions, and answers whose worker was lost in the middle."""

import asyncio
import json
import time
from typing import Any

import httpx
import pytest

from tests.echo_engine import EchoEngine, number
from videoserve.api import alive
from videoserve.api.chat_told import Told
from videoserve.broker import Broker
from videoserve.chat_types import TokensData
from videoserve.errors import ServeError
from videoserve.types import Appetite, Event

pytestmark = pytest.mark.anyio
URL = "/v1/completions"


async def ask(chat: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    answer = await chat.post(URL, json=fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_text_is_continued(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    found = await ask(chat, prompt="Once upon", model="echo", max_tokens=2)
    assert found["id"].startswith("cmpl-")
    assert (found["object"], found["usage"]["completion_tokens"]) == ("text_completion", 2)
    assert found["choices"] == [{"index": 0, "text": "Once u", "logprobs": None, "finish_reason": "length"}]
    assert echo.plans[-1].prompt == "Once upon"


@pytest.mark.parametrize("prompt", [["ab", "cde"], [[97, 98], [99, 100, 101]]], ids=["texts", "tokens"])
async def test_several_prompts(chat: httpx.AsyncClient, echo: EchoEngine, prompt: list[Any]) -> None:
    found = await ask(chat, prompt=prompt, n=2)
    texts = [(choice["index"], choice["text"]) for choice in found["choices"]]
    assert texts == [(0, "ab"), (1, "ab"), (2, "cde"), (3, "cde")]
    assert found["usage"]["prompt_tokens"] == 14
    answer = await chat.post(
        URL, json={"prompt": prompt, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    )
    told = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    streamed: dict[int, str] = {}
    for chunk in told:
        for choice in chunk["choices"]:
            streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
    assert sorted(streamed.items()) == texts
    assert told[-1]["usage"] == found["usage"]
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_tokens_as_a_prompt(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    assert (await ask(chat, prompt=[72, 105]))["choices"][0]["text"] == "Hi"
    assert echo.plans[-1].tokens == (72, 105)


async def test_logprobs(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    found = (await ask(chat, prompt="abcdef", logprobs=1))["choices"][0]["logprobs"]
    assert found["tokens"] == ["abc", "def"]
    assert found["token_logprobs"] == [-0.5, -0.5]
    assert found["top_logprobs"][0] == {"abc": -0.5, "?": -1.5}
    assert found["text_offset"] == [0, 3]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_token_ids(chat: httpx.AsyncClient, echo: EchoEngine, path: str) -> None:
    said: dict[str, Any] = {"prompt": "abcdef"}
    if "chat" in path:
        said = {"messages": [{"role": "user", "content": "abcdef"}]}
    expected = [number("abc"), number("def")]
    whole = (await chat.post(path, json=said | {"return_token_ids": True})).json()
    assert whole["choices"][0]["token_ids"] == expected
    answer = await chat.post(path, json=said | {"return_token_ids": True, "stream": True})
    told = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    assert [token for chunk in told for token in chunk["choices"][0].get("token_ids", ())] == expected
    assert "token_ids" not in (await chat.post(path, json=said)).json()["choices"][0]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": "a", "suffix": "b"}, "unsupported_field"),
        ({"prompt": "a", "messages": []}, "unknown_field"),
        ({"prompt": []}, "invalid_value"),
        ({"prompt": ["a"] * 65}, "invalid_value"),
        ({"prompt": 5}, "invalid_value"),
        ({}, "invalid_value"),
    ],
)
async def test_what_cannot_be_used(chat: httpx.AsyncClient, fields: dict[str, Any], code: str) -> None:
    answer = await chat.post(URL, json=fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)


async def test_a_body_that_is_no_json(chat: httpx.AsyncClient) -> None:
    answer = await chat.post(URL, content=b"prompt=a", headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code == 415
    answer = await chat.post(URL, content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def said(start: int, tokens: list[int], text: str, finish: Any = None) -> TokensData:
    return TokensData(index=0, start=start, text=text, tokens=tokens, logprobs=None, finish_reason=finish)


def test_what_was_told_is_not_told_again() -> None:
    told = Told(0)
    # A split letter is held back: text may come without its token.
    parts = [told.take(said(0, [1], "a")), told.take(said(1, [], "b")), told.take(said(1, [2, 3], "c"))]
    assert [part.text for part in parts] == ["a", "b", "c"]
    told.begin_again()
    again = [told.take(said(0, [1, 2], "ab")), told.take(said(2, [3, 4], "cd")), told.take(said(4, [5], "e", "stop"))]
    assert [(part.text, part.tokens, part.finish) for part in again] == [
        ("", (), None),
        ("d", (4,), None),
        ("e", (5,), "stop"),
    ]


@pytest.mark.parametrize("other", [said(0, [9], "a"), said(0, [1], "x"), said(1, [2], "b")])
def test_an_attempt_that_says_otherwise_is_not_spliced(other: TokensData) -> None:
    told = Told(0)
    told.take(said(0, [1], "a"))
    told.begin_again()
    with pytest.raises(ServeError) as raised:
        told.take(other)
    assert raised.value.code == "answer_lost"


@pytest.mark.parametrize("other", [said(0, [1], "ab", "stop"), said(0, [1, 2], "a", "stop")])
def test_an_attempt_that_ends_sooner_is_not_told(other: TokensData) -> None:
    told = Told(0)
    told.take(said(0, [1, 2], "ab"))
    told.begin_again()
    with pytest.raises(ServeError) as raised:
        told.take(other)
    assert raised.value.code == "answer_lost"


def test_a_continuation_ends_once() -> None:
    told = Told(0)
    told.take(said(0, [1], "a", "stop"))
    told.begin_again()
    again = told.take(said(0, [1], "a", "stop"))
    assert (again.text, again.tokens, again.finish) == ("", (), None)
    told.begin_again()
    with pytest.raises(ServeError) as raised:
        told.take(said(0, [1, 2], "ab", "stop"))
    assert raised.value.code == "answer_lost"


@pytest.mark.parametrize("same", [True, False])
async def test_a_stream_whose_worker_is_lost(chat: httpx.AsyncClient, broker: Broker, same: bool) -> None:
    asking = asyncio.create_task(chat.post(URL, json={"prompt": "x", "stream": True, "seed": 1}))
    first = await claimed(broker)
    event = Event(job_id="", kind="tokens", data=dict(said(0, [1, 2], "Hello ")))
    await broker.tell([(first.job.id, first.fence, [event])])
    await broker.fail(first.job.id, first.fence, "worker_error", "it died", retry=True)
    second = await claimed(broker)
    assert second.job.id == first.job.id
    words = "Hello " if same else "Howdy "
    whole = Event(job_id="", kind="tokens", data=dict(said(0, [1, 2, 3], words + "you", "stop")))
    await broker.tell([(second.job.id, second.fence, [whole])])
    receipt = {"usage": {"prompt_tokens": 1, "completion_tokens": 3, "cached_tokens": 0}, "choices": []}
    receipt |= {"first_token_s": 0.1, "total_s": 0.1, "preemptions": 0}
    if same:
        await broker.finish(second.job.id, second.fence, {}, receipt)
    lines = [line for line in (await asking).text.split("\n\n") if line.startswith("data: ")]
    told = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    texts = [choice["text"] for chunk in told for choice in chunk.get("choices", ())]
    if same:
        assert (texts, lines[-1]) == (["Hello ", "you"], "data: [DONE]")
    else:
        assert texts == ["Hello "]
        assert told[-1]["error"]["code"] == "answer_lost"


async def test_a_stream_that_waits_is_kept_alive(
    chat: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what fails once it has begun is told in it."""
    monkeypatch.setattr(alive, "ALIVE_S", 0.01)
    asking = asyncio.create_task(chat.post(URL, json={"prompt": "x", "stream": True}))
    claim = await claimed(broker)
    # One at least has gone out by now, or goes out before the end is heard of.
    await asyncio.sleep(0.05)
    await broker.fail(claim.job.id, claim.fence, "deadline_exceeded", "It took too long.", retry=False)
    answer = await asking
    assert (answer.status_code, answer.text[:9]) == (200, ": alive\n\n")
    lines = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert [json.loads(line[6:])["error"]["message"] for line in lines] == ["It took too long."]


async def claimed(broker: Broker) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        claim = await broker.claim("chat", "w", Appetite(idle=True))
        if claim is not None:
            return claim
        await asyncio.sleep(0.01)
    raise AssertionError("There was nothing to claim.")
