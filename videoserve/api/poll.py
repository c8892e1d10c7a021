"""GET /v1/videos/{id} by the shortest way: hundreds of clients poll beside a model that needs the processor.

Stands before the router, which would find the same route (`videos.retrieve`) but spend most of the time on finding
it. What was rendered is kept for as long as the broker shows the same state.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from videoserve.api.auth import Caller, require
from videoserve.api.errors import answer
from videoserve.api.lookup import missing
from videoserve.api.service import Service
from videoserve.api.video_object import poll_headers, video_object
from videoserve.broker import JobState
from videoserve.errors import ServeError

PREFIX: Final = "/v1/videos/"
REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class Rendered:
    """The start and the body of an answer, and what they were made of."""

    state: JobState
    costs: Mapping[str, Any]
    start: dict[str, Any]
    body: dict[str, Any]


class PollRoute:
    """ASGI middleware that answers polls itself and passes all else on."""

    def __init__(self, app: ASGIApp, service: Service):
        self._app = app
        self._service = service
        self._caller = require("generate")
        self._rendered: OrderedDict[str, Rendered] = OrderedDict()
        # What the metrics call this route.
        self._route = Route(PREFIX + "{video_id}", endpoint=self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        video_id = scope["path"][len(PREFIX) :]
        if "/" in video_id or not video_id:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        try:
            rendered = await self._render(video_id, await self._caller(Request(scope)))
        except ServeError as error:
            await answer(error)(scope, receive, send)
            return
        await send(rendered.start)
        await send(rendered.body)

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
