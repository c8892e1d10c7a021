"""/v1/videos: read, list, cancel, delete."""

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from videoserve.api.describe import failures
from videoserve.api.head import ReadRoute
from videoserve.api.lookup import Generate, find, not_ready, show
from videoserve.api.schemas import DeletedVideo, Video, VideoList
from videoserve.api.service import Served
from videoserve.api.video_object import poll_headers

LIMIT_MAX = 100

router = APIRouter(tags=["videos"], route_class=ReadRoute)


@router.get("/v1/videos", response_model=VideoList, responses=failures(404))
async def list_videos(
    caller: Generate,
    service: Served,
    after: Annotated[str | None, Query(description="The id that the page before ended with.")] = None,
    limit: Annotated[int, Query(ge=1, description=f"At most {LIMIT_MAX}; more is cut to that and told.")] = 20,
    order: Literal["asc", "desc"] = "desc",
    status: Literal["queued", "in_progress", "completed", "failed"] | None = None,
) -> JSONResponse:
    """Your videos, the latest first unless `order` is asc."""
    found, more = await service.broker.list(
        caller.tenant, after=after, limit=min(limit, LIMIT_MAX), order=order, status=status
    )
    data = [await show(service, job, state) for job, state in found]
    notes = [] if limit <= LIMIT_MAX else [f"limit is {limit}; a page has at most {LIMIT_MAX}: {LIMIT_MAX} is used."]
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "has_more": more,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "adjustments": notes,
        }
    )


@router.get("/v1/videos/{video_id}", response_model=Video, responses=failures(404))
async def retrieve(video_id: str, caller: Generate, service: Served) -> JSONResponse:
    """The video, also when it failed: then `error` says why. `openai-poll-after-ms` says when to ask again."""
    video = await show(service, *await find(service, video_id, caller))
    return JSONResponse(video, headers=poll_headers(video))


@router.get("/v1/videos/{video_id}/receipt", responses=failures(404, 409))
async def receipt(video_id: str, caller: Generate, service: Served) -> JSONResponse:
    """What was computed for a completed video: parameters, stage times, digests, environment."""
    _, state = await find(service, video_id, caller)
    if state.receipt is None:
        raise not_ready(video_id, state)
    return JSONResponse(state.receipt)


@router.post("/v1/videos/{video_id}/cancel", response_model=Video, responses=failures(404, 409))
async def cancel(video_id: str, caller: Generate, service: Served) -> JSONResponse:
    """Stops a video: it ends as failed with code "cancelled", a running one within a denoising step."""
    await find(service, video_id, caller)
    return JSONResponse(await show(service, *await service.broker.cancel(video_id, caller.tenant)))


@router.delete("/v1/videos/{video_id}", response_model=DeletedVideo, responses=failures(404))
async def delete(video_id: str, caller: Generate, service: Served) -> JSONResponse:
    """Removes a video and its files; one that runs is cancelled first."""
    await find(service, video_id, caller)
    began = time.time()
    for sha256 in await service.broker.delete(video_id, caller.tenant):
        await asyncio.to_thread(service.files.delete, sha256, last_put_before=began)
    return JSONResponse({"id": video_id, "object": "video.deleted", "deleted": True})
