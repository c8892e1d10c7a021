"""A chat without a server: the same engine as a worker's, in this process, one answer at a time."""

import os
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from videoserve.chat_types import ChatRequest
from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.planning.chat import plan_chat
from videoserve.planning.chat_model import NoChat, chat_card
from videoserve.text.engine import TextEngine
from videoserve.types import Event, Job

# What a conversation keeps here is computed once: each answer begins with the blocks of those before it.
ONE = "local"


class Talk:
    """Raises ValueError, a sentence, where there is no chat model or it cannot be used."""

    def __init__(self, settings: Settings):
        try:
            self._card = chat_card(settings)
        except NoChat as reason:
            raise ValueError(str(reason)) from None
        torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
        self._engine = TextEngine(settings)
        self._engine.load()
        self._asked = 0

    def answer(self, messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> Iterator[str]:
        """The answer as it grows; one that is not read to its end is given up. `options` are fields of ChatRequest.

        Raises JobFailed.
        """
        request = ChatRequest(messages=tuple(messages), **options)
        plan = plan_chat(request, self._card, random_seed=secrets.randbelow(2**53))
        self._asked += 1
        job_id = f"chat-{self._asked}"
        now = time.time()
        job = Job(id=job_id, kind="chat", tenant=ONE, request={}, plan=plan.to_dict(), created_at=now)
        self._engine.admit(job, None)
        events: list[Event] = []
        try:
            working = True
            while working:
                working = self._engine.step(events.append)
                yield from map(_text, events)
                events.clear()
        finally:
            self._engine.cancel(job_id)

    def close(self) -> None:
        self._engine.close()


def _text(event: Event) -> str:
    if event.kind == "failed":
        raise JobFailed(event.data["code"], event.data["message"])
    return str(event.data["text"]) if event.kind == "tokens" else ""
