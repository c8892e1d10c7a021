"""DeepSeek-V4's calls, found in answers however they are cut, and the same that its recipe writes."""

import itertools
import json
from typing import Any

import deepseek_recipe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from videoserve.api.chat_tools import Arguments, Call, CallFinder, Calling, Words
from videoserve.api.dsml_calls import CLOSE, OPEN, DsmlFinder

Found = tuple[str, list[tuple[str, Any]]]


def invoke(name: str, **parameters: str) -> str:
    said = "".join(
        f'<｜DSML｜parameter name="{key}" {value}</｜DSML｜parameter>\n' for key, value in parameters.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{said}</｜DSML｜invoke>\n'


def found(text: str, cuts: list[int], most: int | None = None) -> Found:
    finder = DsmlFinder(CallFinder(Calling.TAGGED, most=most), most=most)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [piece for begin, end in itertools.pairwise(edges) for piece in finder.feed(text[begin:end])]
    pieces += finder.finish()
    names = [piece.name for piece in pieces if isinstance(piece, Call)]
    assert [piece.number for piece in pieces if isinstance(piece, Call)] == list(range(finder.calls))
    told = ["".join(p.text for p in pieces if isinstance(p, Arguments) and p.number == n) for n in range(len(names))]
    words = "".join(piece.text for piece in pieces if isinstance(piece, Words))
    return words, [(name, json.loads(arguments)) for name, arguments in zip(names, told, strict=True)]


WEATHER = invoke("weather", city='string="true">Ulm </x> "1"\n', days='string="false">[1, {"a": null}]')
NOON = invoke("time", at='string="false">noon', of='string="false">NaN')
CASES: list[tuple[str, Found]] = [
    ("no call < at all <｜DSML｜tool_cal", ("no call < at all <｜DSML｜tool_cal", [])),
    (
        f"Sure.\n\n{OPEN}\n{WEATHER}{invoke('time')}{CLOSE}",
        ("Sure.", [("weather", {"city": 'Ulm </x> "1"\n', "days": [1, {"a": None}]}), ("time", {})]),
    ),
    (f"a\n\n{OPEN}hello{CLOSE} b", (f"a\n\n{OPEN}hello{CLOSE} b", [])),
    (f'a {OPEN}\n<｜DSML｜invoke name="ti', (f'a {OPEN}\n<｜DSML｜invoke name="ti', [])),
    (f"{OPEN}{invoke('time')}<｜DSML｜invo", ("", [("time", {})])),
    (f"{OPEN}{NOON}{CLOSE} bye", (" bye", [("time", {"at": "noon", "of": "NaN"})])),
    (
        f'<tool_call>{{"name": "a", "arguments": {{}}}}</tool_call>{OPEN}{invoke("b")}{CLOSE}',
        ("", [("a", {}), ("b", {})]),
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
@given(cuts=st.lists(st.integers(0, 330), max_size=8))
def test_calls_are_found_wherever_the_text_is_cut(text: str, expected: Found, cuts: list[int]) -> None:
    assert found(text, cuts) == expected


def test_no_more_calls_than_were_asked_for() -> None:
    assert found(f"{OPEN}{invoke('a')}{invoke('b')}{CLOSE}", [], most=1) == ("", [("a", {})])


def test_what_the_recipe_writes_is_found_again() -> None:
    arguments = {"city": 'Ulm\n"x" <b>', "days": 3, "when": [True, None], "where": {"a": "ß"}}
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": "Is it warm?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "31"},
    ]
    options = deepseek_recipe.ConversionOptions(default_thinking_mode=False)
    request = deepseek_recipe.ChatCompletionRequest({"model": "DeepSeek-V4-Pro", "messages": messages})
    prompt = deepseek_recipe.DeepseekV4Encoding().render_conversation(request.convert(options).conversation).prompt
    answer = prompt.split("</think>", 1)[1].split("<｜end▁of▁sentence｜>")[0]
    assert found(answer, []) == ("I look.", [("weather", arguments)])
