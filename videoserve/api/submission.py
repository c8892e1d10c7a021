"""From the fields of a request to jobs in the queue."""

import asyncio
import hashlib
import json
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from videoserve.api import pictures
from videoserve.api.asked import asked, asked_again
from videoserve.api.auth import Caller
from videoserve.api.errors import invalid, unknown_field
from videoserve.api.multipart import Upload
from videoserve.api.pictures import Picture
from videoserve.api.reuse import known_of
from videoserve.api.schemas import KEPT, CreateVideo, Options, RemixVideo
from videoserve.api.service import Service
from videoserve.api.webhooks import validate_url
from videoserve.errors import BadImage, Conflict, InvalidField, NotFound
from videoserve.planning.limits import SEED_MAX
from videoserve.planning.plan import check_costs, check_deadline, estimate, plan_video
from videoserve.types import Job, VideoPlan, VideoRequest

Body = TypeVar("Body", bound=Options)

# Random seeds are numbers that JavaScript reads exactly.
RANDOM_SEEDS = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A checked request: what to do, and what belongs to the jobs rather than to the video.

    `hold` keeps the stored pictures and adapters until there is a job that names them.
    """

    request: VideoRequest
    options: Options
    plans: tuple[VideoPlan, ...]
    estimate_s: float | None
    hold: str
    remixed_from: str | None = None


async def draft(service: Service, caller: Caller, fields: dict[str, Any]) -> Draft:
    """Checks the fields of POST /v1/videos and plans. Stores the pictures; queues nothing."""
    fields = _unfolded(fields)
    first = pictures.take(fields, pictures.FIRST)
    last = pictures.take(fields, pictures.LAST)
    body = _validated(CreateVideo, fields)
    if body.model not in (None, service.card.name):
        raise NotFound(f"There is no model {body.model!r} here; this server has {service.card.name}.", param="model")
    if first is None:
        raise BadImage("input_reference is missing: a video starts from a picture, as a file or as a data URL.")
    loras = await asyncio.to_thread(asked, service.adapters, caller.tenant, body.lora or ())
    hold = _new_hold()
    image = await pictures.bring(*first, service, hold)
    last_image = None if last is None else await pictures.bring(*last, service, hold)
    kept = {name: value for name, value in body.model_dump().items() if name in KEPT}
    request = VideoRequest(
        **kept,
        image=image.sha256,
        last_image=None if last_image is None else last_image.sha256,
        image_notes=image.notes + (() if last_image is None else last_image.notes),
        loras=loras,
    )
    return await _planned(service, request, body, image, hold)


async def draft_remix(service: Service, caller: Caller, source: Job, fields: dict[str, Any]) -> Draft:
    """The request of `source` with what `fields` say otherwise."""
    fields = _unfolded(fields)
    for name in pictures.FIELDS:
        if name in fields:
            raise InvalidField(name, f"{name} is given, but a remix keeps its picture; POST /v1/videos takes another.")
    body = _validated(RemixVideo, fields)
    # Its own seed and its own size, so that only what was said becomes other.
    base = source.request | {"seed": source.plan["seed"], "deadline_s": None}
    said = body.model_fields_set
    for alternatives in ({"size", "width", "height"}, {"seconds", "num_frames"}):
        if said & alternatives:
            base |= dict.fromkeys(alternatives)
    changes = {name: value for name, value in body.model_dump().items() if name in said & KEPT}
    request = VideoRequest.from_dict(base | changes)
    if "lora" in said:
        loras = await asyncio.to_thread(asked, service.adapters, caller.tenant, body.lora or ())
    else:
        loras = await asyncio.to_thread(asked_again, service.adapters, caller.tenant, request.loras)
    request = replace(request, loras=loras)
    hold = _new_hold()
    for sha256 in filter(None, (request.image, request.last_image)):
        await service.broker.hold(sha256, hold)
        if not await asyncio.to_thread(service.files.keep, sha256):
            raise Conflict(f"The video {source.id} was deleted just now, and its picture with it.", code="deleted")
    width, height = await asyncio.to_thread(pictures.size_of, service.files, request.image)
    image = Picture(sha256=request.image, width=width, height=height, notes=request.image_notes)
    return replace(await _planned(service, request, body, image, hold), remixed_from=source.id)


async def submit(service: Service, caller: Caller, made: Draft, idempotency: tuple[str, str] | None) -> list[Job]:
    """Queues the jobs of a draft, all or none. With an idempotency key that was used before: the earlier jobs."""
    now = time.time()
    ids = [f"video_{uuid.uuid4().hex}" for _ in made.plans]
    request = made.request.to_dict()
    jobs = [
        Job(
            id=job_id,
            kind="video",
            tenant=caller.tenant,
            request=request,
            plan=plan.to_dict(),
            # In this order, not at one moment: the queue orders equal moments by id.
            created_at=now + number * 1e-6,
            priority=made.request.priority,
            deadline=None if made.request.deadline_s is None else now + made.request.deadline_s,
            work_s=made.estimate_s,
            webhook_url=made.options.webhook_url,
            metadata=made.options.metadata,
            remixed_from=made.remixed_from,
            siblings=tuple(other for other in ids if other != job_id),
        )
        for number, (job_id, plan) in enumerate(zip(ids, made.plans, strict=True))
    ]
    known = await known_of(service, jobs, made.hold)
    return await service.broker.submit(
        jobs,
        idempotency=idempotency,
        queue_limit=service.settings.queue_limit,
        key_queue_limit=caller.limits.queue,
        key_concurrency=caller.limits.concurrency,
        hold=made.hold,
        twins=known.twins,
        done=known.done,
    )


def fingerprint(path: str, fields: Mapping[str, Any]) -> str:
    """sha256 of what a request asks: the same for every spelling and boundary of the same form."""

    def plain(value: Any) -> Any:
        return hashlib.sha256(value.data).hexdigest()

    text = json.dumps([path, fields], sort_keys=True, ensure_ascii=False, default=plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _new_hold() -> str:
    return f"upload_{uuid.uuid4().hex}"


async def _planned(service: Service, request: VideoRequest, body: Options, image: Picture, hold: str) -> Draft:
    count = _count(body)
    if body.webhook_url is not None:
        await validate_url(body.webhook_url, service.settings)
    seed = secrets.randbelow(RANDOM_SEEDS)
    plan = await asyncio.to_thread(
        plan_video,
        request,
        service.card,
        (image.width, image.height),
        random_seed=seed,
        pixels_max=service.settings.pixels_max,
    )
    for digest in {use.digest for use in plan.loras}:
        await service.broker.hold(digest, hold)
        await asyncio.to_thread(service.adapters.keep, digest)
    costs = await service.costs()
    check_costs(plan, costs)
    work_s = estimate(plan, costs)
    check_deadline(request.deadline_s, work_s)
    return Draft(request=request, options=body, plans=_seeded(plan, count), estimate_s=work_s, hold=hold)


def _seeded(plan: VideoPlan, count: int) -> tuple[VideoPlan, ...]:
    plans = [plan]
    for number in range(1, count):
        seed = (plan.seed + number) % (SEED_MAX + 1)
        sentence = f"Video {number + 1} of {count}: its seed is {seed}, {plan.seed} + {number}."
        plans.append(replace(plan, seed=seed, adjustments=(*plan.adjustments, sentence)))
    return tuple(plans)


def _unfolded(fields: dict[str, Any]) -> dict[str, Any]:
    """A copy of `fields` in which those of extra_params, an object or its JSON text, stand beside the others."""
    rest = {name: value for name, value in fields.items() if name != "extra_params"}
    extra = fields.get("extra_params")
    if isinstance(extra, str):
        try:
            extra = from_json(extra, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidField("extra_params", f"extra_params is not JSON: {error}.") from None
    if extra is None:
        return rest
    if not isinstance(extra, dict):
        raise InvalidField("extra_params", "extra_params must be an object whose names are fields of the request.")
    for name in extra:
        if fields.get(name) is not None:
            raise InvalidField(name, f"{name} is given twice, once in extra_params.")
    return rest | extra


def _validated(model: type[Body], fields: dict[str, Any]) -> Body:
    for name, value in fields.items():
        if name not in model.model_fields:
            raise unknown_field(name, model.model_fields)
        if isinstance(value, Upload):
            raise InvalidField(name, f"{name} is a file; it must be text.")
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid(error, model.model_fields) from None


def _count(body: Options) -> int:
    other = body.num_outputs_per_prompt
    if other is not None and "n" in body.model_fields_set and body.n != other:
        raise InvalidField("n", f"n is {body.n} and num_outputs_per_prompt, its other name, {other}.")
    return body.n if other is None else other
