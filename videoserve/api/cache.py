"""/v1/cache: what is kept between requests, for the operator; and its bytes, for the other nodes."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Path, Query
from fastapi.responses import Response

from videoserve.api.auth import Caller, require
from videoserve.api.cache_schemas import CacheEntryList, CacheStats, Dropped, PinnedEntry
from videoserve.api.cache_view import opened, page, reachable, tallies, totals
from videoserve.api.describe import failures
from videoserve.api.head import ReadRoute
from videoserve.api.service import Served
from videoserve.errors import InvalidField, NotFound, ServeError
from videoserve_cache.index.key import Kind

LIMIT_MAX: Final = 1000
PIN_MAX_S: Final = 30 * 24 * 3600
# Whoever pins by hand is one holder, whichever process was asked.
OPERATOR: Final = "operator"

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Of an entry, as the list shows it.")]
Name = Annotated[str | None, Query(min_length=1, max_length=200)]
OneKind = Annotated[Kind | None, Query()]

router = APIRouter(tags=["cache"], route_class=ReadRoute)
# The calls to index and disks block: routes are no coroutines, and run on threads.
Admin = Annotated[Caller, Depends(require("admin"))]


@router.get("/v1/cache/stats", response_model=CacheStats, responses=failures(404))
def stats(service: Served, caller: Admin) -> dict[str, Any]:
    """What all processes of all nodes have found and missed, and what the nodes hold."""
    with reachable():
        told = opened(service).stats()
    kinds = tallies(told["counts"])
    return {"object": "cache.stats", "total": totals(kinds), "kinds": kinds} | told


@router.get("/v1/cache/entries", response_model=CacheEntryList, responses=failures(404))
def entries(
    service: Served,
    caller: Admin,
    after: Annotated[
        str | None, Query(pattern=r"^[a-z_]+:[0-9a-f]{64}$", description="The last_id of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
    kind: OneKind = None,
    model: Name = None,
    tenant: Name = None,
) -> dict[str, Any]:
    """The entries by kind and digest, a page at a time."""
    with reachable():
        data, last = page(opened(service), after, limit, {"kind": kind, "model": model, "tenant": tenant})
    names = [f"{row['kind']}:{row['digest']}" for row in data]
    data = [{"object": "cache.entry"} | row for row in data]
    return {"object": "list", "data": data, "has_more": last is not None} | {
        "first_id": names[0] if names else None,
        "last_id": last or (names[-1] if names else None),
    }


@router.delete("/v1/cache/entries", response_model=Dropped, responses=failures(404))
def drop(
    service: Served, caller: Admin, kind: OneKind = None, model: Name = None, lora: Name = None, tenant: Name = None
) -> dict[str, Any]:
    """Forgets all entries of a kind, a model, an adapter or a tenant: exactly one of them is to be named."""
    asked = {"kind": kind, "model": model, "lora": lora, "tenant": tenant}
    named = [(by, value) for by, value in asked.items() if value is not None]
    if len(named) != 1:
        said = " and ".join(by for by, _ in named) or "nothing"
        raise InvalidField("tenant", f"The call names {said}; it must name one of {', '.join(asked)}.")
    with reachable():
        return {"object": "cache.dropped", "dropped": opened(service).drop(*named[0])}  # type: ignore[arg-type]


@router.delete("/v1/cache/entries/{digest}", response_model=Dropped, responses=failures(404))
def drop_one(digest: Digest, service: Served, caller: Admin) -> dict[str, Any]:
    """Forgets one entry."""
    with reachable():
        dropped = opened(service).drop("digest", digest)
    if not dropped:
        raise no_entry(digest)
    return {"object": "cache.dropped", "dropped": dropped}


@router.post("/v1/cache/entries/{digest}/pin", response_model=PinnedEntry, responses=failures(404))
def pin(
    digest: Digest,
    service: Served,
    caller: Admin,
    ttl_s: Annotated[float, Query(gt=0, le=PIN_MAX_S, allow_inf_nan=False, description="For so many seconds.")] = 3600,
) -> dict[str, Any]:
    """Nobody evicts the entry for a while; dropping it is still possible."""
    with reachable():
        found = opened(service).pin(digest, ttl_s, OPERATOR)
    if not found:
        raise no_entry(digest)
    return {"object": "cache.entry", "digest": digest, "pinned": True}


@router.post("/v1/cache/entries/{digest}/unpin", response_model=PinnedEntry, responses=failures(404))
def unpin(digest: Digest, service: Served, caller: Admin) -> dict[str, Any]:
    """Ends what `pin` began; readers that use the entry just now keep it until they have done."""
    with reachable():
        found = opened(service).unpin(digest, OPERATOR)
    if not found:
        raise no_entry(digest)
    return {"object": "cache.entry", "digest": digest, "pinned": False}


@router.get(
    "/v1/cache/blobs/{sha256}",
    response_class=Response,
    responses=failures(404)
    | {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def blob(sha256: str, service: Served, authorization: Annotated[str, Header()] = "") -> Response:
    """Bytes that this node has, for a node that knows the secret they share. No API key opens it."""
    try:
        content = opened(service).serve(sha256, authorization)
    except PermissionError:
        raise ServeError(
            "The Authorization header does not open this blob: the nodes need the same cache secret.",
            status=401,
            code="invalid_cache_token",
        ) from None
    if content is None:
        raise NotFound("This node has no such blob.")
    return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})


def no_entry(digest: str) -> NotFound:
    return NotFound(f"There is no cache entry {digest}.", param="digest")
