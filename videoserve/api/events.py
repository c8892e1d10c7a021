"""GET /v1/videos/{id}/events: what happens to a video, as server-sent events."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from videoserve.api.alive import kept_alive
from videoserve.api.describe import failures, headers_of
from videoserve.api.lookup import Generate, find
from videoserve.api.service import Served
from videoserve.errors import InvalidField
from videoserve.types import Event

SEQ_MAX: Final = 2**63 - 1
# What a worker tells the broker but no client.
INTERNAL: Final = ("checkpoint",)

router = APIRouter(tags=["videos"])


@router.get(
    "/v1/videos/{video_id}/events",
    response_class=Response,
    openapi_extra=headers_of(Last_Event_ID="The number of the last event that was read: those after it follow."),
    responses=failures(404) | {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    video_id: str,
    request: Request,
    caller: Generate,
    service: Served,
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="As Last-Event-ID, for those who cannot send it.")] = 0,
) -> StreamingResponse:
    """stage, progress, preview, adjusted, done and failed events from the beginning, or after `Last-Event-ID`.

    Ends with done or failed. Of the previews only the latest is kept.
    """
    await find(service, video_id, caller)
    seq = _last_event_id(request, after)
    stream = service.broker.events(video_id, seq)
    return StreamingResponse(
        kept_alive(_texts(stream)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _last_event_id(request: Request, after: int) -> int:
    header = request.headers.get("last-event-id", "")
    if header == "":
        return after
    # The length first: Python reads no number of more than 4300 digits.
    if not (header.isascii() and header.isdecimal() and len(header) < 20 and int(header) <= SEQ_MAX):
        raise InvalidField("Last-Event-ID", f"The Last-Event-ID is {header[:80]!r}; it must be the number of an event.")
    return int(header)


async def _texts(stream: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    # The headers go out with the first piece.
    yield b": videoserve\n\n"
    async for event in stream:
        if event.kind not in INTERNAL:
            yield _text(event)


def _text(event: Event) -> bytes:
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(event.data)}\n\n".encode()
