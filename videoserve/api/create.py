"""New videos: POST /v1/videos, remix, sync, and the plan without the video."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from videoserve.api.auth import Caller
from videoserve.api.describe import body_of, failures, headers_of
from videoserve.api.forms import read_fields
from videoserve.api.lookup import Generate, find, show
from videoserve.api.schemas import CreateVideo, RemixVideo, Video
from videoserve.api.service import Served, Service
from videoserve.api.submission import draft, draft_remix, fingerprint, submit
from videoserve.api.sync import result_of
from videoserve.api.video_object import poll_headers
from videoserve.errors import InvalidField
from videoserve.types import Job

router = APIRouter(tags=["videos"])
REFUSALS = failures(400, 404, 408, 409, 413, 415, 429)
# A picture is fetched where the body names its URL, and stored.
OF_PICTURES = failures(502, 504, 507)
ONCE = headers_of(Idempotency_Key="The same body with the same key, of at most 255 characters, makes no second video.")


@router.post(
    "/v1/videos", response_model=Video, openapi_extra=body_of(CreateVideo) | ONCE, responses=REFUSALS | OF_PICTURES
)
async def create(request: Request, caller: Generate, service: Served) -> JSONResponse:
    """Queues a video and answers at once; with n > 1 the first of them, whose `siblings` are the others.

    With an `Idempotency-Key` header the same body again gives the same video, and another body a 409.
    """
    fields = await read_fields(request, service.settings)
    once = await _idempotency(request, fields)
    job = await _earlier(service, caller, once)
    if job is None:
        job, *_ = await submit(service, caller, await draft(service, caller, fields), once)
    return await _shown(service, caller, job)


@router.post(
    "/v1/videos/{video_id}/remix",
    response_model=Video,
    openapi_extra=body_of(RemixVideo) | ONCE,
    responses=REFUSALS,
)
async def remix(video_id: str, request: Request, caller: Generate, service: Served) -> JSONResponse:
    """A new video from the picture of an earlier one, with its seed and settings, and what the body says otherwise."""
    fields = await read_fields(request, service.settings)
    once = await _idempotency(request, fields)
    job = await _earlier(service, caller, once)
    if job is None:
        source, _ = await find(service, video_id, caller)
        job, *_ = await submit(service, caller, await draft_remix(service, caller, source, fields), once)
    return await _shown(service, caller, job)


@router.post(
    "/v1/videos/sync",
    response_class=Response,
    openapi_extra=body_of(CreateVideo) | ONCE,
    responses=REFUSALS
    | OF_PICTURES
    | failures(500)
    | {200: {"content": {"video/mp4": {"schema": {"type": "string", "format": "binary"}}}}},
)
async def create_sync(request: Request, caller: Generate, service: Served) -> Response:
    """Makes a video and answers with the mp4 once it is done. A client that goes away cancels it.

    Not with an `Idempotency-Key` header: then the video is made all the same, and the same body again gets it.
    """
    fields = await read_fields(request, service.settings)
    once = await _idempotency(request, fields)
    job = await _earlier(service, caller, once)
    if job is None:
        made = await draft(service, caller, fields)
        if len(made.plans) > 1:
            raise InvalidField("n", f"n is {len(made.plans)}; an answer that is the video itself holds one.")
        job, *_ = await submit(service, caller, made, once)
    return await result_of(service, job, request, cancels=once is None)


@router.post("/v1/plan", openapi_extra=body_of(CreateVideo), responses=failures(400, 404, 408, 413, 415) | OF_PICTURES)
async def plan(request: Request, caller: Generate, service: Served) -> JSONResponse:
    """What POST /v1/videos would do with this body, and about how long it would compute; nothing is queued.

    `parallel` is how the ranks of a worker share it: the plan, and the seconds of a step at the model's default size as
    they were forecast and measured. Null while no worker is ready.
    """
    made = await draft(service, caller, await read_fields(request, service.settings))
    plans = [single.to_dict() for single in made.plans]
    parallel = await service.parallel(made.plans[0])
    return JSONResponse({"object": "plan", "estimate_s": made.estimate_s, "parallel": parallel, "plans": plans})


async def _shown(service: Service, caller: Caller, job: Job) -> JSONResponse:
    video = await show(service, *await find(service, job.id, caller))
    return JSONResponse(video, headers=poll_headers(video))


async def _earlier(service: Service, caller: Caller, once: tuple[str, str] | None) -> Job | None:
    """The job that the same request made before. Asked before anything is checked: what was taken stays taken."""
    jobs = None if once is None else await service.broker.earlier(caller.tenant, once)
    return None if jobs is None else jobs[0]


async def _idempotency(request: Request, fields: dict[str, Any]) -> tuple[str, str] | None:
    key = request.headers.get("idempotency-key")
    if not key:
        return None
    if len(key) > 255:
        raise InvalidField("Idempotency-Key", f"The Idempotency-Key has {len(key)} characters; at most 255.")
    return key, await asyncio.to_thread(fingerprint, request.url.path, fields)
