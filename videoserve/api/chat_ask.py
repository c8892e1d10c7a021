"""From the fields of a chat's request to jobs in the queue."""

import asyncio
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from videoserve.api.auth import Caller
from videoserve.api.chat_adapters import adapters_of
from videoserve.api.chat_schemas import (
    UNSUPPORTED,
    ChatCompletionRequest,
    CompletionRequest,
    Message,
    Sampling,
)
from videoserve.api.errors import invalid, unknown_field
from videoserve.api.measure import api_process_id
from videoserve.api.schemas import Lora
from videoserve.api.service import Service
from videoserve.chat_types import ChatPlan, ChatRequest
from videoserve.errors import InvalidField, ServeError
from videoserve.planning.chat import plan_chat
from videoserve.planning.chat_model import ChatCard
from videoserve.types import Job

Body = TypeVar("Body", bound=Sampling)

PROMPTS_MAX = 64
# Random seeds are numbers that JavaScript reads exactly.
RANDOM_SEEDS = 2**53
# Fields that ChatRequest has by the same name and as they are.
SAME = frozenset(ChatRequest.__dataclass_fields__) - {
    "messages", "prompt", "tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs",
    "response_format", "tools", "tool_choice", "parallel_tool_calls", "priority",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A checked request of one prompt or several, each of which becomes a job."""

    requests: tuple[ChatRequest, ...]
    stream: bool
    include_usage: bool
    token_ids: bool
    loras: tuple[Lora, ...] = ()

    @property
    def first(self) -> ChatRequest:
        return self.requests[0]


def card_of(service: Service) -> ChatCard:
    """Raises ServeError 404 where no chat model is served, with how it would be."""
    if isinstance(service.chat, str):
        raise ServeError(service.chat, status=404, code="no_chat_model", param="model")
    return service.chat


def ask_chat(fields: Mapping[str, Any]) -> Asked:
    """Of POST /v1/chat/completions. Raises ServeError 422."""
    body = _validated(ChatCompletionRequest, fields)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidField("top_logprobs", f"top_logprobs is {body.top_logprobs}, which goes with logprobs: true.")
    request = ChatRequest(
        **_same(body),
        messages=tuple(_plain(message) for message in body.messages),
        max_tokens=_most(body),
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs,
        response_format=_dumped(body.response_format),
        tools=tuple(_dumped(tool) for tool in body.tools) if body.tools else None,
        tool_choice=body.tool_choice if isinstance(body.tool_choice, str) else _dumped(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
    )
    return Asked(requests=(request,), loras=tuple(body.lora or ()), **_streaming(body))


def ask_completion(fields: Mapping[str, Any]) -> Asked:
    """Of POST /v1/completions. Raises ServeError 422."""
    body = _validated(CompletionRequest, fields)
    top = body.logprobs
    same = _same(body) | {"max_tokens": body.max_tokens, "logprobs": top is not None, "top_logprobs": top}
    prompts = body.prompt if isinstance(body.prompt, list) else [body.prompt]
    if not prompts:
        raise InvalidField("prompt", "prompt is an empty list; it must have at least one text or token.")
    if isinstance(prompts[0], int):
        prompts = [prompts]
    if len(prompts) > PROMPTS_MAX:
        raise InvalidField("prompt", f"prompt has {len(prompts)} texts; at most {PROMPTS_MAX}.")
    requests = tuple(
        ChatRequest(**same, prompt=prompt) if isinstance(prompt, str) else ChatRequest(**same, tokens=tuple(prompt))
        for prompt in prompts
    )
    return Asked(requests=requests, loras=tuple(body.lora or ()), **_streaming(body))


async def submit(service: Service, caller: Caller, asked: Asked, prefix: str) -> tuple[list[Job], ChatPlan]:
    """Queues the jobs of a request, all or none, under ids that begin with `prefix`; the plan is the first one's."""
    card = card_of(service)
    seed = secrets.randbelow(RANDOM_SEEDS)
    hold = f"chat_{uuid.uuid4().hex}"
    loras, base = await adapters_of(service, caller.tenant, card, asked.first.model, asked.loras)
    plans = [plan_chat(replace(request, model=base, loras=loras), card, random_seed=seed) for request in asked.requests]
    for digest in {use.digest for use in plans[0].loras}:
        await service.broker.hold(digest, hold)
        await asyncio.to_thread(service.adapters.keep, digest)
    now, first = time.time(), asked.first
    jobs = [
        Job(
            id=f"{prefix}-{uuid.uuid4().hex}",
            kind="chat",
            tenant=caller.tenant,
            request={"asker": api_process_id()},
            plan=plan.to_dict(),
            # In this order, not at one moment: the queue orders equal moments by id.
            created_at=now + number * 1e-6,
            priority=first.priority,
            deadline=None if first.deadline_s is None else now + first.deadline_s,
        )
        for number, plan in enumerate(plans)
    ]
    await service.broker.submit(
        jobs,
        queue_limit=service.settings.queue_limit,
        key_queue_limit=caller.limits.queue,
        key_concurrency=caller.limits.concurrency,
        hold=hold if loras else None,
    )
    return jobs, plans[0]


def _validated(model: type[Body], fields: Mapping[str, Any]) -> Body:
    given = dict(fields)
    for name, value in fields.items():
        if name in UNSUPPORTED:
            if value is not None:
                sentence = f"The field {name} is not supported here: {UNSUPPORTED[name]}."
                raise ServeError(sentence, status=422, code="unsupported_field", param=name)
            del given[name]
        elif name not in model.model_fields:
            raise unknown_field(name, model.model_fields)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid(error, model.model_fields) from None


def _same(body: Sampling) -> dict[str, Any]:
    """The fields that a ChatRequest has as the body has them."""
    said = body.model_dump()
    stop = body.stop
    return {name: value for name, value in said.items() if name in SAME and value is not None} | {
        "stop": () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "ignore_eos": bool(body.ignore_eos),
        "priority": body.priority or 0,
    }


def _most(body: ChatCompletionRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise InvalidField("max_tokens", f"max_tokens is {old} and max_completion_tokens, its other name, {new}.")
    return old if new is None else new


def _streaming(body: Sampling) -> dict[str, bool]:
    stream = bool(body.stream)
    if body.stream_options is not None and not stream:
        raise InvalidField("stream_options", "stream_options goes with stream: true.")
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    return {"stream": stream, "include_usage": include_usage, "token_ids": bool(body.return_token_ids)}


def _plain(message: Message) -> dict[str, Any]:
    """A message as chat templates read it: one text, and no other names for the same role."""
    content = message.content
    told: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content if isinstance(content, str) else "".join(part.text for part in content or ()),
    }
    if message.tool_calls:
        told["tool_calls"] = [_dumped(call) for call in message.tool_calls]
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            told[name] = value
    return told


def _dumped(model: Any) -> Any:
    return None if model is None else model.model_dump(by_alias=True, exclude_none=True)
