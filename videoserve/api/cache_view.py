"""The cache as an operator sees it: what was counted, by kind, and its entries in pages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from videoserve.api.service import Service
from videoserve.errors import ServeError
from videoserve_cache.tiers import Away, SharedCache

# A page with filters looks at so many entries at once.
SCANNED: Final = 1000
# How the counts of the index begin, and what they are called here.
TALLIED: Final = {"hits": "hits", "misses": "misses", "evicted": "evictions", "saved_s": "saved_s"}


def tallies(counts: dict[str, float]) -> dict[str, dict[str, float]]:
    """What is counted by kind, over all tiers."""
    kinds: dict[str, dict[str, float]] = {}
    for name, number in counts.items():
        what, *rest = name.split(":")
        if what in TALLIED:
            kind = kinds.setdefault(rest[0], {})
            kind[TALLIED[what]] = kind.get(TALLIED[what], 0) + number
    return kinds


def totals(kinds: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: sum(kind.get(name, 0) for kind in kinds.values()) for name in TALLIED.values()}


def page(
    cache: SharedCache, after: str | None, limit: int, filters: dict[str, Any]
) -> tuple[list[dict[str, Any]], str | None]:
    """`limit` entries, fewer only at the end, and the name that the next page begins after, None at the end."""
    rows: list[dict[str, Any]] = []
    scanned = SCANNED if filters["model"] or filters["tenant"] else limit + 1
    while True:
        found, after = cache.entries(after=after, limit=scanned, **filters)
        rows += found
        if len(rows) > limit:
            last = rows[limit - 1]
            return rows[:limit], f"{last['kind']}:{last['digest']}"
        if after is None:
            return rows, None


def opened(service: Service) -> SharedCache:
    if service.cache is None:
        raise ServeError("This server keeps nothing between requests: its cache is off.", status=404, code="cache_off")
    return service.cache


@contextmanager
def reachable() -> Iterator[None]:
    """ServeError 503 while the index is away."""
    try:
        yield
    except Away:
        raise ServeError(
            "The index of the cache does not answer; what is kept is computed anew meanwhile.",
            status=503,
            code="store_unavailable",
        ) from None
