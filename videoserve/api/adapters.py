"""/v1/loras: adapters are uploaded, listed, named and forgotten."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from videoserve.api.adapter_form import receive
from videoserve.api.adapter_offer import offer_of, one
from videoserve.api.adapter_schemas import (
    FORM,
    DeletedLora,
    LoadedLoras,
    LoraAdapter,
    LoraList,
    VerifiedLora,
    lora_object,
)
from videoserve.api.auth import Caller, require
from videoserve.api.describe import failures
from videoserve.api.head import ReadRoute
from videoserve.api.service import Served, Service
from videoserve.errors import ServeError
from videoserve.storage.adapter_names import missing, scope_of

LIMIT_MAX: Final = 100
# Of one tenant, in this process: each takes room on the disk that no quota counts yet.
UPLOADS_MAX: Final = 4

Reader = Annotated[Caller, Depends(require("generate", "adapters"))]
Writer = Annotated[Caller, Depends(require("adapters"))]

router = APIRouter(tags=["adapters"], route_class=ReadRoute)


@router.post(
    "/v1/loras",
    status_code=201,
    response_model=LoraAdapter,
    openapi_extra={"requestBody": FORM},
    responses=failures(400, 404, 408, 409, 413, 415, 429, 507) | {200: {"model": LoraAdapter}},
)
async def add(request: Request, caller: Writer, service: Served) -> JSONResponse:
    """Checks a LoRA and keeps it under a name; 200 when it is there already. Every key of the file is used, or the
    answer is a 422 that lists those at fault.

    Another file under a name that is taken is a 409, unless `replace` says that it is a new version.
    """
    with _counted(service, caller.tenant):
        async with receive(request, service.adapters.store, service.settings) as parts:
            # The one that `base_model` names.
            adapters = service.adapters_for(one(parts, "base_model"))
            offer = await asyncio.to_thread(offer_of, parts, adapters.target)
            async with service.checking:
                named, new = await asyncio.to_thread(adapters.add, scope_of(caller.tenant), offer)
    return JSONResponse(lora_object(named), 201 if new else 200)


@router.get("/v1/loras", response_model=LoraList, responses=failures(404))
async def list_adapters(
    caller: Reader,
    service: Served,
    after: Annotated[str | None, Query(description="The id that the page before ended with.")] = None,
    limit: Annotated[int, Query(ge=1, description=f"At most {LIMIT_MAX}; more is cut to that and told.")] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> JSONResponse:
    """Your adapters and those that come with the model, the latest first unless `order` is asc."""
    found = await asyncio.to_thread(service.adapters.list, caller.tenant)
    if order == "asc":
        found.reverse()
    ids = [named.id for named in found]
    if after is not None and after not in ids:
        raise missing(after)
    start = 0 if after is None else ids.index(after) + 1
    end = start + min(limit, LIMIT_MAX)
    notes = [] if limit <= LIMIT_MAX else [f"limit is {limit}; a page has at most {LIMIT_MAX}: {LIMIT_MAX} is used."]
    return JSONResponse(
        {
            "object": "list",
            "data": [lora_object(named) for named in found[start:end]],
            "has_more": end < len(found),
            "first_id": ids[start] if start < len(ids) else None,
            "last_id": ids[start:end][-1] if start < len(ids) else None,
            "adjustments": notes,
        }
    )


@router.get("/v1/list_loras", response_model=LoadedLoras, responses=failures())
async def list_loras(caller: Reader, service: Served) -> dict[str, Any]:
    """The same list in the shape that SGLang's clients read."""
    found = await asyncio.to_thread(service.adapters.list, caller.tenant)
    return {"loaded_adapters": [{"nickname": named.label.name, "path": named.id} for named in found], "active": {}}


@router.get("/v1/loras/{lora_id}", response_model=LoraAdapter, responses=failures(404))
async def retrieve(lora_id: str, caller: Reader, service: Served) -> JSONResponse:
    """An adapter by its id, name or alias; name@2 is its second version."""
    return JSONResponse(lora_object(await asyncio.to_thread(service.adapters.find, caller.tenant, lora_id)))


@router.delete("/v1/loras/{lora_id}", response_model=DeletedLora, responses=failures(404))
async def delete(lora_id: str, caller: Writer, service: Served) -> JSONResponse:
    """Forgets an adapter with its versions and aliases, or an alias alone. Jobs that have it keep it to their end."""
    gone = await asyncio.to_thread(service.adapters.remove, caller.tenant, lora_id)
    return JSONResponse({"id": gone, "object": "lora.deleted", "deleted": True})


@router.post("/v1/loras/{lora_id}/verify", response_model=VerifiedLora, responses=failures(404, 409))
async def verify(lora_id: str, caller: Reader, service: Served) -> dict[str, Any]:
    """Whether the adapter is whole on the disk, and fits the model of a worker that is ready now."""
    named = await asyncio.to_thread(service.adapters.find, caller.tenant, lora_id)
    adapters = service.adapters_for(named.version.about["base_model"])
    await asyncio.to_thread(adapters.verify, named)
    model = adapters.target.name
    able = [each for each in await service.broker.workers() if each["ready"] and each.get("model") == model]
    if not able:
        raise ServeError(f"The adapter fits, but no worker with {model} is ready.", status=409, code="not_ready")
    return {
        "id": named.id,
        "object": "lora.verified",
        "name": named.label.name,
        "version": named.version.number,
        "digest": named.version.digest,
        "model": model,
        "workers": len(able),
        "report": named.version.about["report"],
    }


@router.put("/v1/loras/{lora_id}/aliases/{alias}", response_model=LoraAdapter, responses=failures(404, 409, 429))
async def alias(lora_id: str, alias: str, caller: Writer, service: Served) -> JSONResponse:
    """Lets another name stand for an adapter, or for one version of it (name@2)."""
    return JSONResponse(lora_object(await asyncio.to_thread(service.adapters.alias, caller.tenant, lora_id, alias)))


@contextmanager
def _counted(service: Service, tenant: str) -> Iterator[None]:
    if service.uploads[tenant] >= UPLOADS_MAX:
        raise ServeError(
            f"{UPLOADS_MAX} of your uploads are under way, as many as are taken at once; try again when one is done.",
            status=429,
            code="upload_limit",
        )
    service.uploads[tenant] += 1
    try:
        yield
    finally:
        service.uploads[tenant] -= 1
        if not service.uploads[tenant]:
            del service.uploads[tenant]
