"""Functions and their calls as plain words, for models whose chat template knows neither."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

# The words that Hermes, Qwen and SmolLM2 were trained with.
HEAD = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
TAIL = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


def in_words(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The same conversation without tools: they stand in its system message, calls and results in the others."""
    told = [_message(message) for message in messages]
    if not tools:
        return told
    offered = HEAD + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + TAIL
    if told and told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{offered}"}, *told[1:]]
    return [{"role": "system", "content": offered}, *told]


def parsed(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation with the arguments of calls as objects, which is what templates write as JSON."""
    return [
        message | {"tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in map(dict, messages)
    ]


def _parsed(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        # What a model wrote and its client sends back need not be JSON.
        arguments = function["arguments"]
    return dict(call) | {"function": dict(function) | {"arguments": arguments}}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [
        "<tool_call>\n"
        + json.dumps({"name": call["function"]["name"], "arguments": call["function"]["arguments"]}, ensure_ascii=False)
        + "\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": "\n".join([*([content] if content else []), *calls])}
