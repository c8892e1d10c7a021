"""Answers as OpenAI's clients read them, made of what the engine tells."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from videoserve.api.chat_told import Grown
from videoserve.api.chat_tools import Arguments, Call, CallFinder, Calling, Words
from videoserve.api.dsml_calls import DsmlFinder
from videoserve.chat_types import ChatPlan, ChatReceipt, ChoiceData, TokenChance, TokenLogprob, Usage

Json = dict[str, Any]


class ChatWords:
    """The words of /v1/chat/completions: messages, and chunks that messages are collected from."""

    object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        calling: Calling,
        *,
        name: str = "",
        most: int | None = None,
        logprobs: bool = False,
        token_ids: bool = False,
    ):
        self._token_ids = token_ids
        self._calling, self._name, self._most = calling, name, most
        self._finders: dict[int, CallFinder | DsmlFinder] = {}
        self._logprobs = logprobs

    def choice(self, choice: ChoiceData, index: int) -> Json:
        """A whole continuation."""
        finder = self._finder()
        pieces = [*finder.feed(choice["text"]), *finder.finish()]
        words = "".join(piece.text for piece in pieces if isinstance(piece, Words))
        message: Json = {"role": "assistant", "content": words, "refusal": None}
        if finder.calls:
            message |= {"content": words or None, "tool_calls": _calls(pieces)}
        return {
            "index": index,
            "message": message,
            "logprobs": self._chances(choice["logprobs"]),
            "finish_reason": _reason(choice["finish_reason"], finder),
            **_ids(choice["tokens"] if self._token_ids else None),
        }

    def grown(self, news: Grown) -> list[Json]:
        """The choices of the chunks that tell what a continuation has grown by."""
        first = news.index not in self._finders
        finder = self._finders.setdefault(news.index, self._finder())
        pieces = finder.feed(news.text) + (finder.finish() if news.finish else [])
        deltas = [{"role": "assistant", "content": "", "refusal": None}] if first else []
        deltas += [_delta(piece) for piece in pieces]
        if (news.logprobs or (self._token_ids and news.tokens)) and len(deltas) == first:
            # Their text is held back, or goes into a call.
            deltas.append({})
        made = [_chunk_choice(news.index, delta) for delta in deltas]
        if made and news.logprobs:
            made[-1]["logprobs"] = self._chances(news.logprobs)
        if made and self._token_ids:
            made[-1] |= _ids(news.tokens)
        if news.finish:
            made.append(_chunk_choice(news.index, {}) | {"finish_reason": _reason(news.finish, finder)})
        return made

    def _finder(self) -> CallFinder | DsmlFinder:
        finder = CallFinder(self._calling, name=self._name, most=self._most)
        return DsmlFinder(finder, most=self._most) if self._calling is Calling.TAGGED else finder

    def _chances(self, logprobs: Sequence[TokenLogprob] | None) -> Json | None:
        if logprobs is None or not self._logprobs:
            return None
        content = [_chance(told) | {"top_logprobs": [_chance(top) for top in told["top"]]} for told in logprobs]
        return {"content": content, "refusal": None}


class CompletionWords:
    """The words of /v1/completions: texts."""

    object, chunk_object = "text_completion", "text_completion"

    def __init__(self, *, logprobs: bool = False, token_ids: bool = False):
        self._logprobs, self._token_ids = logprobs, token_ids
        # The length of the text of each continuation so far.
        self._at: dict[int, int] = {}

    def choice(self, choice: ChoiceData, index: int) -> Json:
        told = self._chances(choice["logprobs"], 0)
        ids = _ids(choice["tokens"] if self._token_ids else None)
        return {
            "index": index,
            "text": choice["text"],
            "logprobs": told,
            "finish_reason": choice["finish_reason"],
            **ids,
        }

    def grown(self, news: Grown) -> list[Json]:
        at = self._at.get(news.index, 0)
        self._at[news.index] = at + len(news.text)
        told = self._chances(news.logprobs, at)
        ids = _ids(news.tokens if self._token_ids else None)
        return [{"index": news.index, "text": news.text, "logprobs": told, "finish_reason": news.finish, **ids}]

    def _chances(self, logprobs: Sequence[TokenLogprob] | None, at: int) -> Json | None:
        if logprobs is None or not self._logprobs:
            return None
        offsets = []
        for told in logprobs:
            offsets.append(at)
            at += len(told["token"])
        return {
            "tokens": [told["token"] for told in logprobs],
            "token_logprobs": [told["logprob"] for told in logprobs],
            "top_logprobs": [{top["token"]: top["logprob"] for top in told["top"]} for told in logprobs],
            "text_offset": offsets,
        }


def usage(usages: Iterable[Usage]) -> Json:
    """Of all the prompts of a request together."""
    told = list(usages)
    prompt, made, cached = (
        sum(one[name] for one in told) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def receipt(receipts: Sequence[ChatReceipt], plan: ChatPlan) -> Json:
    """What the request took, beside OpenAI's fields, and what of it is not used as asked. Times in seconds since the
    engine had it."""
    return {
        "seed": plan.seed,
        **({"adjustments": list(plan.adjustments)} if plan.adjustments else {}),
        "first_token_s": round(min(told["first_token_s"] for told in receipts), 4),
        "total_s": round(max(told["total_s"] for told in receipts), 4),
        "preemptions": sum(told["preemptions"] for told in receipts),
    }


def _ids(tokens: Sequence[int] | None) -> Json:
    return {} if tokens is None else {"token_ids": list(tokens)}


def _calls(pieces: Sequence[Any]) -> list[Json]:
    calls: list[Json] = []
    for piece in pieces:
        if isinstance(piece, Call):
            calls.append({"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": ""}})
        elif isinstance(piece, Arguments):
            calls[piece.number]["function"]["arguments"] += piece.text
    return calls


def _delta(piece: Words | Call | Arguments) -> Json:
    if isinstance(piece, Words):
        return {"content": piece.text}
    if isinstance(piece, Call):
        function = {"name": piece.name, "arguments": ""}
        return {"tool_calls": [{"index": piece.number, "id": piece.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": piece.number, "function": {"arguments": piece.text}}]}


def _chunk_choice(index: int, delta: Json) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _reason(finish: str, finder: CallFinder | DsmlFinder) -> str:
    return "tool_calls" if finder.calls and finish == "stop" else finish


def _chance(told: TokenChance) -> Json:
    return {"token": told["token"], "logprob": told["logprob"], "bytes": told["bytes"]}


def sse(data: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
