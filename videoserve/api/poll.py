"""GET /v1/videos/{id} by the shortest way: hundreds of clients poll beside a model that needs the processor.

The same answer as the route `videos.retrieve` gives, which finding it alone would cost most of the time. What was
rendered is kept for as long as the broker shows the same state.
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
CALLER_FRESH_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Rendered:
    """The start and the body of an answer, and what they were made of."""

    state: JobState
    costs: Mapping[str, Any]
    start: dict[str, Any]
    body: dict[str, Any]


class PollingApp(FastAPI):
    """FastAPI that answers polls before it does anything else."""

    polls: "Polls"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].startswith(PREFIX):
            video_id = scope["path"][len(PREFIX) :]
            if video_id and "/" not in video_id:
                scope["app"] = self
                await self.polls.answer(video_id, scope, receive, send)
                return
        await super().__call__(scope, receive, send)


class Polls:
    """Answers GET /v1/videos/{id} and counts its answers as Measured does those of the router."""

    def __init__(self, service: Service, meter: Meter):
        self._service = service
        self._meter = meter
        self._require = require("generate")
        self._callers: dict[tuple[tuple[bytes, bytes], ...], tuple[Caller, float]] = {}
        self._rendered: OrderedDict[str, Rendered] = OrderedDict()

    async def answer(self, video_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 200
        try:
            rendered = await self._render(video_id, await self._caller(scope))
            await send(rendered.start)
            await send(rendered.body)
        except ServeError as error:
            status = error.status
            await answer(error)(scope, receive, send)
        except Exception as error:
            status = 500
            await crash(Request(scope), error)(scope, receive, send)
        self._meter.count("videoserve_http_requests", method="GET", route=ROUTE, status=str(status))
        self._meter.observe("videoserve_http_seconds", time.perf_counter() - began, route=ROUTE)

    async def _caller(self, scope: Scope) -> Caller:
        identity = tuple([header for header in scope["headers"] if header[0] in IDENTITY])
        now = time.monotonic()
        caller, until = self._callers.get(identity, (None, 0.0))
        if caller is None or until < now:
            caller = await self._require(Request(scope))
            if len(self._callers) > REMEMBERED:
                self._callers.clear()
            self._callers[identity] = (caller, now + CALLER_FRESH_S)
        return caller

    async def _render(self, video_id: str, caller: Caller) -> Rendered:
        """Raises NotFound for a video that is not there or another client's."""
        found = await self._service.broker.glance(video_id, caller.tenant)
        if found is None:
            raise missing(video_id)
        job, state = found
        costs = await self._service.costs()
        known = self._rendered.get(video_id)
        if known is not None and known.state is state and known.costs is costs:
            return known
        work_s = self._service.work_s(job, costs) if state.status == "queued" else None
        video = video_object(job, state, work_s=work_s, workers=self._service.settings.workers)
        rendered = Rendered(state, costs, *_messages(video))
        self._rendered[video_id] = rendered
        self._rendered.move_to_end(video_id)
        if len(self._rendered) > REMEMBERED:
            self._rendered.popitem(last=False)
        return rendered


def _messages(video: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    body = json.dumps(video, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **poll_headers(video)}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return (
        {"type": "http.response.start", "status": 200, "headers": raw},
        {"type": "http.response.body", "body": body},
    )
