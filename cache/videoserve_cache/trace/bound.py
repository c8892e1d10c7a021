"""What no policy can save more than, not even one that knows what will be asked for."""

from collections.abc import Sequence

from videoserve_cache.trace.accesses import Access


def most_saved_s(accesses: Sequence[Access], capacity: int) -> float:
    """Seconds that a cache of `capacity` bytes can save on a trace at most.

    A hit needs the entry's bytes from its last access to this one. All hits together cannot need more than the cache
    has over the whole trace, and what fits of that is largest when the most seconds a byte and access are taken first,
    the last of them in part (Berger et al., Practical Bounds on Optimal Caching with Variable Object Sizes, 2018).
    """
    last: dict[int, int] = {}
    hits: list[tuple[float, float, float]] = []
    for now, access in enumerate(accesses):
        before = last.get(access.entry)
        if before is not None and access.use == "ask" and access.size <= capacity:
            space = float(access.size * (now - before))
            hits.append((access.cost_s / space, space, access.cost_s))
        last[access.entry] = now
    left, saved = float(capacity * len(accesses)), 0.0
    for _, space, cost_s in sorted(hits, reverse=True):
        if space >= left:
            return saved + cost_s * left / space
        left -= space
        saved += cost_s
    return saved
