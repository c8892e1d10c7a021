"""New videos: POST /v1/videos, remix, sync, and the plan without the video."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from videoserve.api.auth import Caller
from videoserve.api.describe import body_of, failures
from videoserve.api.forms import read_fields
from videoserve.api.lookup import Generate, find, show
from videoserve.api.schemas import CreateVideo, RemixVideo, Video
from videoserve.api.service import Served, Service
from videoserve.api.submission import Draft, draft, draft_remix, fingerprint, submit
from videoserve.api.sync import result_of
from videoserve.api.video_object import poll_headers
from videoserve.errors import InvalidField

router = APIRouter(tags=["videos"])
REFUSALS = failures(400, 404, 408, 409, 413, 415, 429)


@router.post("/v1/videos", response_model=Video, openapi_extra=body_of(CreateVideo), responses=REFUSALS)
async def create(request: Request, caller: Generate, service: Served) -> JSONResponse:
    """Queues a video and answers at once; with n > 1 the first of them, whose `siblings` are the others.

    With an `Idempotency-Key` header the same body again gives the same video, and another body a 409.
    """
    fields = await read_fields(request, service.settings)
    idempotency = await _idempotency(request, fields)
    return await _queued(service, caller, await draft(service, fields), idempotency)


@router.post("/v1/videos/{video_id}/remix", response_model=Video, openapi_extra=body_of(RemixVideo), responses=REFUSALS)
async def remix(video_id: str, request: Request, caller: Generate, service: Served) -> JSONResponse:
    """A new video from the picture of an earlier one, with its seed and settings, and what the body says otherwise."""
    fields = await read_fields(request, service.settings)
    source, _ = await find(service, video_id, caller)
    idempotency = await _idempotency(request, fields)
    return await _queued(service, caller, await draft_remix(service, source, fields), idempotency)


@router.post(
    "/v1/videos/sync",
    response_class=Response,
    openapi_extra=body_of(CreateVideo),
    responses=REFUSALS | {200: {"content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def create_sync(request: Request, caller: Generate, service: Served) -> Response:
    """Makes a video and answers with the mp4 once it is done. A client that goes away cancels it."""
    fields = await read_fields(request, service.settings)
    made = await draft(service, fields)
    if len(made.plans) > 1:
        raise InvalidField("n", f"n is {len(made.plans)}; an answer that is the video itself holds one.")
    job, *_ = await submit(service, caller, made, None)
    return await result_of(service, job, request)


@router.post("/v1/plan", openapi_extra=body_of(CreateVideo), responses=failures(400, 404, 408, 413, 415))
async def plan(request: Request, caller: Generate, service: Served) -> JSONResponse:
    """What POST /v1/videos would do with this body, and about how long it would compute; nothing is queued.

    `parallel` is how the ranks of a worker share it: the plan, and the seconds of a step at the model's default size as
    they were forecast and measured. Null while no worker is ready.
    """
    made = await draft(service, await read_fields(request, service.settings))
    plans = [single.to_dict() for single in made.plans]
    parallel = await service.parallel(made.plans[0])
    return JSONResponse({"object": "plan", "estimate_s": made.estimate_s, "parallel": parallel, "plans": plans})


async def _queued(service: Service, caller: Caller, made: Draft, idempotency: tuple[str, str] | None) -> JSONResponse:
    job, *_ = await submit(service, caller, made, idempotency)
    video = await show(service, *await find(service, job.id, caller))
    return JSONResponse(video, headers=poll_headers(video))


async def _idempotency(request: Request, fields: dict[str, Any]) -> tuple[str, str] | None:
    key = request.headers.get("idempotency-key")
    if not key:
        return None
    if len(key) > 255:
        raise InvalidField("Idempotency-Key", f"The Idempotency-Key has {len(key)} characters; at most 255.")
    return key, await asyncio.to_thread(fingerprint, request.url.path, fields)
