"""Tools in the words of a template that knows of them, and of one that does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from videoserve.text.load import load_model
from videoserve.text.vocabulary import BadConversation, Vocabulary

CALL = {"id": "c", "type": "function", "function": {"name": "time", "arguments": '{"zone": "UTC"}'}}
MESSAGES = [
    {"role": "user", "content": "What time is it?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "12:00", "tool_call_id": "c"},
]
TOOLS = [{"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}]


@pytest.fixture
def vocabulary(chat_dir: Callable[[str], Path]) -> Vocabulary:
    loaded = load_model(str(chat_dir("llama")), device=torch.device("cpu"), dtype=torch.float32, int8=False)
    return loaded.vocabulary


def test_a_template_without_tools_gets_them_in_words(vocabulary: Vocabulary) -> None:
    text = vocabulary.render(MESSAGES, tools=TOOLS)
    assert text.startswith("<system>You may call one or more functions")
    assert '{"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}' in text
    assert text.endswith(
        "<user>What time is it?<assistant><tool_call>\n"
        '{"name": "time", "arguments": {"zone": "UTC"}}\n</tool_call>'
        "<user><tool_response>\n12:00\n</tool_response><assistant>"
    )
    own = vocabulary.render([{"role": "system", "content": "Be brief."}, *MESSAGES], tools=TOOLS)
    assert own.startswith("<system>Be brief.\n\nYou may call one or more functions")
    assert "You may call" not in vocabulary.render(MESSAGES)


def test_a_template_with_tools_gets_them_as_they_are(vocabulary: Vocabulary) -> None:
    template = (
        "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
        "{% endfor %}{{ m.content }};{% endfor %}"
    )
    text = replace(vocabulary, template=template).render(MESSAGES, tools=TOOLS)
    assert text == '[time]user:What time is it?;assistant:{"zone": "UTC"};tool:12:00;'


def call(arguments: str) -> list[dict[str, object]]:
    function = {"name": "weather", "arguments": arguments}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    return [*MESSAGES, said, {"role": "tool", "tool_call_id": "1", "content": "31 degrees"}]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"city": "\\ud800"}', "half of a surrogate pair"),
        ('{"city": ' * 9000 + "1" + "}" * 9000, "nested too deeply"),
    ],
)
def test_arguments_that_are_no_text_are_refused(vocabulary: Vocabulary, arguments: str, words: str) -> None:
    with pytest.raises(BadConversation, match=words):
        vocabulary.converse(call(arguments), tools=TOOLS)


def test_arguments_need_not_be_json(vocabulary: Vocabulary) -> None:
    assert "no json at all" in vocabulary.render(call("no json at all"), tools=TOOLS)
