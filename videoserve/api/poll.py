"""GET /v1/videos/{id} by the shortest way: hundreds of clients poll beside a model that needs the processor.

The same answer as the route `videos.retrieve` gives, which finding it alone would cost most of the time. What was
rendered is kept for as long as the broker shows the same state, and a client that asks with the same bytes again is
answered by `PollProtocol` without reading them again.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from videoserve.api.auth import Caller, require
from videoserve.api.errors import answer, crash
from videoserve.api.service import Service
from videoserve.api.video_object import poll_headers, video_object
from videoserve.broker import JobState
from videoserve.broker.jobs import missing
from videoserve.errors import ServeError
from videoserve.metrics import Meter

PREFIX: Final = "/v1/videos/"
ROUTE: Final = PREFIX + "{video_id}"
REMEMBERED: Final = 4096
# The headers of a GET that say who calls; the same ones are not looked at again for a moment.
IDENTITY: Final = (b"host", b"authorization")
CALLER_FRESH_S: Final = 0.5
# Bytes of them that are remembered at most.
IDENTITY_BYTES: Final = 2048
# The ASGI extension that holds a request's bytes as they came.
AS_IT_CAME: Final = "videoserve.request"

Identity = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer and what it was made of."""

    state: JobState
    costs: Mapping[str, Any]
    headers: list[tuple[bytes, bytes]]
    body: bytes
    # Headers and body as they go over the wire.
    raw: bytes


class PollingApp(FastAPI):
    """FastAPI that answers polls before it does anything else."""

    polls: "Polls"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _may_be_poll(scope):
            video_id = scope["path"][len(PREFIX) :]
            if video_id and "/" not in video_id:
                scope["app"] = self
                await self.polls.answer(video_id, scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def _may_be_poll(scope: Scope) -> bool:
    # A query has no meaning here; the router refuses it in the same words as everywhere.
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and scope["path"].startswith(PREFIX)
        and not scope["query_string"]
    )


class Polls:
    """Answers GET /v1/videos/{id} and counts its answers as Measured does those of the router."""

    def __init__(self, service: Service, meter: Meter):
        self._service = service
        self._meter = meter
        self._answered = meter.counter("videoserve_http_requests", method="GET", route=ROUTE, status="200")
        self._taken = meter.histogram("videoserve_http_seconds", route=ROUTE)
        self._require = require("generate")
        self._callers: dict[Identity, tuple[Caller, float]] = {}
        self._rendered: OrderedDict[str, Rendered] = OrderedDict()
        self._asked: dict[bytes, tuple[str, Identity]] = {}

    async def answer(self, video_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 200
        identity = tuple([header for header in scope["headers"] if header[0] in IDENTITY])
        try:
            rendered = await self._render(video_id, await self._caller(identity, scope))
            self._remember(scope, video_id, identity)
            await send({"type": "http.response.start", "status": 200, "headers": rendered.headers})
            await send({"type": "http.response.body", "body": rendered.body})
        except ServeError as error:
            status = error.status
            await answer(error)(scope, receive, send)
        except Exception as error:
            status = 500
            await crash(Request(scope), error)(scope, receive, send)
        self._meter.count("videoserve_http_requests", method="GET", route=ROUTE, status=str(status))
        self._taken.observe(time.perf_counter() - began)

    def again(self, request: bytes) -> bytes | None:
        """The headers and body for a request whose very bytes were answered before; None where that takes more.

        It takes more when the caller was not checked just now, or when the video is not in memory as it is.
        """
        began = time.perf_counter()
        known = self._asked.get(request)
        costs = self._service.known_costs()
        if known is None or costs is None:
            return None
        video_id, identity = known
        caller, until = self._callers.get(identity, (None, 0.0))
        if caller is None or until < time.monotonic():
            return None
        found = self._service.broker.remembered(video_id, caller.tenant)
        rendered = self._rendered.get(video_id)
        if found is None or rendered is None or rendered.state is not found[1] or rendered.costs is not costs:
            return None
        self._answered.add()
        self._taken.observe(time.perf_counter() - began)
        return rendered.raw

    def _remember(self, scope: Scope, video_id: str, identity: Identity) -> None:
        as_it_came = scope.get("extensions", {}).get(AS_IT_CAME)
        if as_it_came is not None:
            if len(self._asked) > REMEMBERED:
                self._asked.clear()
            self._asked[as_it_came["bytes"]] = video_id, identity

    async def _caller(self, identity: Identity, scope: Scope) -> Caller:
        now = time.monotonic()
        caller, until = self._callers.get(identity, (None, 0.0))
        if caller is not None and until >= now:
            return caller
        if caller is not None:
            # Set first: those who come while this checks go on with what there is.
            self._callers[identity] = (caller, now + CALLER_FRESH_S)
        try:
            caller = await self._require(Request(scope))
        except BaseException:
            self._callers.pop(identity, None)
            raise
        if len(self._callers) > REMEMBERED:
            self._callers.clear()
        if sum(len(value) for _, value in identity) <= IDENTITY_BYTES:
            self._callers[identity] = (caller, now + CALLER_FRESH_S)
        return caller

    async def _render(self, video_id: str, caller: Caller) -> Rendered:
        """Raises NotFound for a video that is not there or another client's."""
        found = await self._service.broker.glance(video_id, caller.tenant)
        if found is None or found[0].kind != "video":
            raise missing(video_id)
        job, state = found
        costs = await self._service.costs()
        known = self._rendered.get(video_id)
        if known is not None and known.state is state and known.costs is costs:
            return known
        work_s = self._service.work_s(job, costs) if state.status == "queued" else None
        video = video_object(job, state, work_s=work_s)
        rendered = Rendered(state, costs, *_message(video))
        self._rendered[video_id] = rendered
        self._rendered.move_to_end(video_id)
        if len(self._rendered) > REMEMBERED:
            self._rendered.popitem(last=False)
        return rendered


def _message(video: dict[str, Any]) -> tuple[list[tuple[bytes, bytes]], bytes, bytes]:
    body = json.dumps(video, ensure_ascii=False, separators=(",", ":")).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), **poll_headers(video)}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    return headers, body, b"".join([*(b"%b: %b\r\n" % header for header in headers), b"\r\n", body])
