"""The answer to one request for a chat, whole or as it grows; a client that leaves ends it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from videoserve.api.alive import kept_alive
from videoserve.api.chat_objects import ChatWords, CompletionWords, receipt, sse, usage
from videoserve.api.chat_told import Grown, News, all_told, failure
from videoserve.api.errors import answer, content
from videoserve.api.service import Service
from videoserve.broker.patience import until_stored
from videoserve.chat_types import ChatPlan, ChatReceipt
from videoserve.errors import Conflict, NotFound, ServeError
from videoserve.types import Job

log = logging.getLogger(__name__)

STOPPING: Final = "The server is stopping and the answer is not finished: ask again."
HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(slots=True)
class Reply:
    """The jobs of a request, in the order of its prompts, and the words their answers are told in."""

    service: Service
    jobs: Sequence[Job]
    plan: ChatPlan
    words: ChatWords | CompletionWords
    include_usage: bool
    # As it was asked for: with an adapter, or without.
    model: str
    ended: bool = False
    receipts: list[ChatReceipt] = field(default_factory=list)

    async def whole(self) -> dict[str, Any]:
        """Raises ServeError when one of the jobs fails."""
        receipts = await asyncio.gather(*(self._receipt(job) for job in self.jobs))
        self.ended = True
        found = [choice for told in receipts for choice in told["choices"]]
        choices = [self.words.choice(choice, index) for index, choice in enumerate(found)]
        return self._head(self.words.object) | {
            "choices": choices,
            "usage": usage(told["usage"] for told in receipts),
            "receipt": receipt(receipts, self.plan),
        }

    async def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events. Raises ServeError when one of the jobs fails."""
        async for news in all_told(self.service.broker, self.jobs, self.plan.n):
            if told := b"".join(map(self._told, news)):
                yield told
        self.ended = True
        if self.include_usage:
            last = {"choices": [], "usage": usage(told["usage"] for told in self.receipts)}
            yield sse(self._head(self.words.chunk_object) | last | {"receipt": receipt(self.receipts, self.plan)})
        yield b"data: [DONE]\n\n"

    async def leave(self) -> None:
        """Nobody reads on: what runs is cancelled, and what has ended is forgotten."""
        for job in self.jobs:
            with suppress(NotFound, Conflict):
                await until_stored(lambda job=job: self._forget(job))  # type: ignore[misc]

    async def _forget(self, job: Job) -> None:
        broker = self.service.broker
        if not self.ended:
            with suppress(Conflict):
                _, state = await broker.cancel(job.id, job.tenant)
                if state.status == "in_progress":
                    # Its worker ends it at its next step, and its record is soon gone by itself.
                    return
        await broker.delete(job.id, job.tenant)

    async def _receipt(self, job: Job) -> ChatReceipt:
        async for batch in self.service.broker.follow(job.id):
            _, event = batch[-1]
            if event.kind == "failed":
                raise failure(event.data["code"], event.data["message"])
            if event.kind == "done":
                told: ChatReceipt = event.data["receipt"]
                return told
        raise Conflict("The chat was deleted before it was done.", code="cancelled")

    def _told(self, news: News) -> bytes:
        if not isinstance(news, Grown):
            self.receipts.append(news)
            return b""
        head = self._head(self.words.chunk_object)
        # Clients that asked for the usage find the field in every chunk.
        tail: Mapping[str, Any] = {"usage": None} if self.include_usage else {}
        return b"".join(sse({**head, "choices": [choice], **tail}) for choice in self.words.grown(news))

    def _head(self, kind: str) -> dict[str, Any]:
        first = self.jobs[0]
        return {"id": first.id, "object": kind, "created": int(first.created_at), "model": self.model}


class WholeReply(Response):
    """The answer once all of it is there."""

    media_type = "application/json"

    def __init__(self, reply: Reply):
        super().__init__()
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell() -> None:
            try:
                response = JSONResponse(await self._reply.whole())
            except ServeError as error:
                response = answer(error)
            await response(scope, receive, send)

        await _until_left(tell(), receive, self._reply)


class StreamReply(Response):
    """The answer as server-sent events. What fails before the first token is an HTTP error as without streaming."""

    media_type = "text/event-stream"

    def __init__(self, reply: Reply):
        super().__init__(headers=HEADERS)
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _until_left(self._tell(scope, receive, send), receive, self._reply)

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def say(body: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": True})

        try:
            async for piece in kept_alive(self._reply.chunks()):
                await say(piece)
        except ServeError as error:
            if not begun:
                await answer(error)(scope, receive, send)
                return
            await say(sse(content(error)))
        except asyncio.CancelledError:
            # Who has left hears nothing of it.
            if begun:
                await say(sse(content(ServeError(STOPPING, status=503, code="server_stopping"))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_left(telling: Any, receive: Receive, reply: Reply) -> None:
    """Tells for as long as there is somebody to hear it."""
    tasks = [asyncio.ensure_future(telling), asyncio.ensure_future(_gone(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    except asyncio.CancelledError:
        log.info("a chat is left: this process ends", extra={"jobs": [job.id for job in reply.jobs]})
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await reply.leave()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
