"""Calls of functions: found in answers however they are cut, streamed, forced by a grammar."""

import itertools
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.echo_engine import EchoEngine
from videoserve.api.chat_tools import Arguments, Call, CallFinder, Calling, Words

pytestmark = pytest.mark.anyio
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "$defs": {"City": {"type": "string", "maxLength": 20}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
ONE = '{"name": "weather", "arguments": {"city": "Paris \\"}{\\" 12"}}'
OTHER = '{"arguments": {"zone": [1, {"a": 2}]}, "name": "time"}'
Found = tuple[str, list[tuple[str, str]]]


def found(text: str, calling: Calling, cuts: list[int], **options: Any) -> Found:
    finder = CallFinder(calling, **options)
    pieces = []
    edges = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(edges):
        pieces += finder.feed(text[begin:end])
    pieces += finder.finish()
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, Call):
            assert piece.number == len(calls)
            calls.append([piece.name, ""])
        elif isinstance(piece, Arguments):
            calls[piece.number][1] += piece.text
    words = "".join(piece.text for piece in pieces if isinstance(piece, Words))
    return words, [(name, arguments) for name, arguments in calls]


CASES: list[tuple[str, Calling, Found]] = [
    ("no call < at all <tool_cal", Calling.TAGGED, ("no call < at all <tool_cal", [])),
    (
        f"Sure.\n<tool_call>\n{ONE}\n</tool_call>\n<tool_call>{OTHER}</tool_call>",
        Calling.TAGGED,
        ("Sure.", [("weather", '{"city": "Paris \\"}{\\" 12"}'), ("time", '{"zone": [1, {"a": 2}]}')]),
    ),
    (f"<tool_call>[{ONE}]</tool_call> bye", Calling.TAGGED, (" bye", [("weather", '{"city": "Paris \\"}{\\" 12"}')])),
    ("<tool_call>{broken}</tool_call>", Calling.TAGGED, ("<tool_call>{broken}</tool_call>", [])),
    ("a\n<tool_call>hello</tool_call>", Calling.TAGGED, ("a\n<tool_call>hello</tool_call>", [])),
    ('<tool_call>{"name": "ti', Calling.TAGGED, ('<tool_call>{"name": "ti', [])),
    ('<tool_call>{"name": "time", "arguments": {"a": 1', Calling.TAGGED, ("", [("time", '{"a": 1')])),
    ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', Calling.TAGGED, ("", [("f", "{}")])),
    (
        f"[{ONE},{OTHER}]", Calling.LISTED,
        ("", [("weather", '{"city": "Paris \\"}{\\" 12"}'), ("time", '{"zone": [1, {"a": 2}]}')]),
    ),
    ('{"city": "Rome"}', Calling.NAMED, ("", [("weather", '{"city": "Rome"}')])),
    ("<tool_call>{}</tool_call>", Calling.NEVER, ("<tool_call>{}</tool_call>", [])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calling", "expected"), CASES)
@given(cuts=st.lists(st.integers(0, 130), max_size=8))
def test_calls_are_found_wherever_the_text_is_cut(
    text: str, calling: Calling, expected: Found, cuts: list[int]
) -> None:
    cuts = [min(cut, len(text)) for cut in cuts]
    assert found(text, calling, cuts, name="weather") == expected
    assert found(text, calling, list(range(len(text))), name="weather") == expected


def test_further_calls_are_left_out() -> None:
    for calling, text in ((Calling.LISTED, f"[{OTHER},{ONE}]"), (Calling.LISTED, f"[{ONE},{OTHER}]")):
        assert len(found(text, calling, [], most=1)[1]) == 1
    text = f"<tool_call>{ONE}</tool_call><tool_call>{OTHER}</tool_call>"
    assert [name for name, _ in found(text, Calling.TAGGED, list(range(len(text))), most=1)[1]] == ["weather"]


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "tools": [WEATHER, TIME]} | fields


async def ask(chat: httpx.AsyncClient, text: str, **fields: Any) -> dict[str, Any]:
    answer = await chat.post("/v1/chat/completions", json=body(text, **fields))
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


async def test_a_call_among_words(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    choice = await ask(chat, f"Let me see.\n<tool_call>\n{ONE}\n</tool_call>")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    [call] = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": 'Paris "}{" 12'}
    assert [tool["function"]["name"] for tool in echo.plans[-1].tools or ()] == ["weather", "time"]
    assert echo.plans[-1].grammar is None


async def test_no_call(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    choice = await ask(chat, "Just words.")
    assert choice["message"] == {"role": "assistant", "content": "Just words.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    choice = await ask(chat, f"<tool_call>{ONE}</tool_call>", tool_choice="none")
    assert choice["message"]["content"] == f"<tool_call>{ONE}</tool_call>"
    assert echo.plans[-1].tools is None


async def test_a_call_that_must_be_made(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    choice = await ask(chat, f"[{ONE}]", tool_choice="required")
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert echo.plans[-1].grammar == {
        "type": "json_schema",
        "schema": {
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "name": {"const": "weather"},
                            "arguments": {
                                "type": "object",
                                "properties": {"city": {"$ref": "#/$defs/0.City"}},
                                "required": ["city"],
                            },
                        },
                        "required": ["name", "arguments"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {"name": {"const": "time"}, "arguments": {"type": "object"}},
                        "required": ["name", "arguments"],
                        "additionalProperties": False,
                    },
                ]
            },
            "$defs": {"0.City": {"type": "string", "maxLength": 20}},
        },
    }
    await ask(chat, f"[{ONE}]", tool_choice="required", parallel_tool_calls=False)
    grammar = echo.plans[-1].grammar
    assert grammar is not None
    assert grammar["schema"]["maxItems"] == 1


async def test_one_function_that_must_be_called(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    chosen = {"type": "function", "function": {"name": "weather"}}
    choice = await ask(chat, '{"city": "Rome"}', tool_choice=chosen)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert echo.plans[-1].grammar == {"type": "json_schema", "schema": WEATHER["function"]["parameters"]}  # type: ignore[index]


async def test_streamed_calls(chat: httpx.AsyncClient, echo: EchoEngine) -> None:
    text = f"Sure. <tool_call>{ONE}</tool_call><tool_call>{OTHER}</tool_call>"
    answer = await chat.post("/v1/chat/completions", json=body(text, stream=True))
    told = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    choices = [chunk["choices"][0] for chunk in told]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "Sure."
    calls: dict[int, dict[str, str]] = {}
    parts = 0
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            call |= {"id": delta["id"], "name": delta["function"]["name"]} if "id" in delta else {}
            call["arguments"] += delta["function"]["arguments"]
            parts += bool(delta["function"]["arguments"])
    assert [calls[number]["name"] for number in (0, 1)] == ["weather", "time"]
    assert json.loads(calls[0]["arguments"]) == {"city": 'Paris "}{" 12'}
    assert calls[0]["id"] != calls[1]["id"]
    # As they came, not all at once.
    assert parts > 4
    assert [choice["finish_reason"] for choice in choices][-1] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "with space"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
    ],
)
async def test_tools_that_cannot_be_used(chat: httpx.AsyncClient, fields: dict[str, Any], param: str) -> None:
    answer = await chat.post("/v1/chat/completions", json=body("a", **fields))
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
