"""From what a client asked of a chat to what the engine does: every choice that needs no tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from videoserve.chat_types import ChatPlan, ChatRequest
from videoserve.errors import InvalidField, NotFound
from videoserve.planning.adapters import adapter_uses
from videoserve.planning.adjustments import Adjustments
from videoserve.planning.chat_model import ChatCard
from videoserve.planning.limits import SEED_MAX

# Calls of one answer, where a grammar has to name a number.
CALLS_MAX: Final = 8
ANY_OBJECT: Final = {"type": "object"}


def plan_chat(request: ChatRequest, card: ChatCard, *, random_seed: int) -> ChatPlan:
    """The plan of one chat for this chat model. `random_seed` is used when none is asked for.

    Raises NotFound for another model, InvalidField for what contradicts itself.
    """
    if request.model not in (None, card.name):
        raise no_model(str(request.model), card.name)
    adjustments = Adjustments(strict=False)
    loras = adapter_uses(request.loras, card, adjustments)
    seed = random_seed if request.seed is None or request.seed == -1 else request.seed
    return ChatPlan(
        model=card.name,
        messages=request.messages,
        prompt=request.prompt,
        tokens=request.tokens,
        tools=None if request.tool_choice == "none" else request.tools,
        template=request.chat_template_kwargs or {},
        n=_or(request.n, 1),
        max_tokens=request.max_tokens,
        temperature=_or(request.temperature, 1.0),
        top_p=_or(request.top_p, 1.0),
        # Other servers take -1 for all.
        top_k=max(_or(request.top_k, 0), 0),
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        logit_bias=request.logit_bias or {},
        seed=seed % (SEED_MAX + 1),
        stop=request.stop,
        stop_tokens=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        logprobs=_or(request.top_logprobs, 0) if request.logprobs else None,
        grammar=_grammar(request),
        loras=loras,
        adjustments=tuple(adjustments.sentences),
    )


def forced_tool(choice: str | dict[str, Any] | None) -> str | None:
    """The name of the only function that may be called; None where there is no such."""
    return str(choice["function"]["name"]) if isinstance(choice, dict) else None


def no_model(asked: str, model: str) -> NotFound:
    return NotFound(f"There is no model {asked[:80]!r} for chats here; this server has {model}.", param="model")


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _grammar(request: ChatRequest) -> dict[str, Any] | None:
    """What the answer must look like: the call of a function, JSON of some schema, or anything."""
    shape = request.response_format
    asked = shape is not None and shape["type"] != "text"
    choice = request.tool_choice
    name = forced_tool(choice)
    if choice == "required" or name is not None:
        if not request.tools:
            raise InvalidField("tool_choice", "tool_choice asks for a call, but tools is empty.")
        if asked:
            raise InvalidField("response_format", "response_format and a tool_choice that asks for a call exclude it.")
        functions = [tool["function"] for tool in request.tools]
        return {
            "type": "json_schema",
            "schema": _calls(functions, CALLS_MAX if request.parallel_tool_calls else 1)
            if name is None
            else _arguments(functions, name),
        }
    if shape is None or not asked:
        return None
    if shape["type"] == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "schema": shape["json_schema"]["schema"]}


def _arguments(functions: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The schema of the arguments of one function, which are then the whole answer."""
    for function in functions:
        if function["name"] == name:
            return dict(function.get("parameters") or ANY_OBJECT)
    known = ", ".join(function["name"] for function in functions)
    raise InvalidField("tool_choice", f"tool_choice names the function {name[:80]!r}; tools has {known}.")


def _calls(functions: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """The schema of a list of calls of any of the functions, `most` of them at most."""
    definitions: dict[str, Any] = {}
    calls = []
    for number, function in enumerate(functions):
        parameters = dict(function.get("parameters") or ANY_OBJECT)
        for place in ("$defs", "definitions"):
            for name, schema in parameters.pop(place, {}).items():
                definitions[f"{number}.{name}"] = _moved(schema, number)
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": _moved(parameters, number)},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": most,
        "items": {"anyOf": calls},
        **({"$defs": definitions} if definitions else {}),
    }


def _moved(schema: Any, number: int) -> Any:
    """The schema with its references to definitions, which stand with those of other functions now."""
    if isinstance(schema, list):
        return [_moved(item, number) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, number) for key, value in schema.items()}
    target = moved.get("$ref")
    if isinstance(target, str):
        for place in ("#/$defs/", "#/definitions/"):
            if target.startswith(place):
                moved["$ref"] = f"#/$defs/{number}.{target[len(place) :]}"
    return moved
