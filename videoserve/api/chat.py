"""POST /v1/chat/completions and /v1/completions, as OpenAI's clients speak them."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from videoserve.api.chat_ask import Asked, ask_chat, ask_completion, card_of, submit
from videoserve.api.chat_objects import ChatWords, CompletionWords
from videoserve.api.chat_reply import Reply, StreamReply, WholeReply
from videoserve.api.chat_schemas import ChatCompletionRequest, CompletionRequest
from videoserve.api.chat_tools import Calling
from videoserve.api.describe import failures, json_body_of
from videoserve.api.forms import read_json
from videoserve.api.lookup import Generate
from videoserve.api.service import Served
from videoserve.planning.chat import forced_tool

router = APIRouter(tags=["chat"])
ANSWERS: dict[int | str, dict[str, Any]] = failures(400, 404, 408, 409, 413, 415, 429, 500) | {
    200: {
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        }
    }
}


@router.post(
    "/v1/chat/completions",
    response_class=Response,
    openapi_extra=json_body_of(ChatCompletionRequest),
    responses=ANSWERS,
)
async def chat_completions(request: Request, caller: Generate, service: Served) -> Response:
    """The model's answer to a conversation, whole or as server-sent events. A client that goes away ends it."""
    card_of(service)
    asked = ask_chat(await read_json(request, service.settings))
    jobs, plan = await submit(service, caller, asked, "chatcmpl")
    return _reply(
        Reply(service, jobs, plan, _chat_words(asked), asked.include_usage, asked.first.model or plan.model), asked
    )


@router.post(
    "/v1/completions",
    response_class=Response,
    openapi_extra=json_body_of(CompletionRequest),
    responses=ANSWERS,
)
async def completions(request: Request, caller: Generate, service: Served) -> Response:
    """How the model goes on with a text, or with each of several. A client that goes away ends it."""
    card_of(service)
    asked = ask_completion(await read_json(request, service.settings))
    jobs, plan = await submit(service, caller, asked, "cmpl")
    words = CompletionWords(logprobs=asked.first.logprobs, token_ids=asked.token_ids)
    return _reply(Reply(service, jobs, plan, words, asked.include_usage, asked.first.model or plan.model), asked)


def _reply(reply: Reply, asked: Asked) -> Response:
    return StreamReply(reply) if asked.stream else WholeReply(reply)


def _chat_words(asked: Asked) -> ChatWords:
    request = asked.first
    name = forced_tool(request.tool_choice)
    if not request.tools or request.tool_choice == "none":
        calling = Calling.NEVER
    elif name is not None:
        calling = Calling.NAMED
    else:
        calling = Calling.LISTED if request.tool_choice == "required" else Calling.TAGGED
    most = None if request.parallel_tool_calls else 1
    return ChatWords(calling, name=name or "", most=most, logprobs=request.logprobs, token_ids=asked.token_ids)
