"""What a cache of some size and policy would have saved on a trace."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from videoserve_cache.trace.accesses import Access
from videoserve_cache.trace.policies import Policy, Rank


@dataclass(slots=True)
class Saved:
    """How often entries were asked for and there, and what computing them took or would have taken, in seconds."""

    asked: int = 0
    hits: int = 0
    asked_s: float = 0.0
    saved_s: float = 0.0
    hit_bytes: int = 0

    @property
    def share(self) -> float:
        """Of all seconds asked for, those saved."""
        return self.saved_s / self.asked_s if self.asked_s else 0.0


@dataclass(slots=True)
class Outcome:
    """`evictions` and `peak_bytes` of the cache; what it saved in all and by kind."""

    total: Saved = field(default_factory=Saved)
    kinds: dict[str, Saved] = field(default_factory=dict)
    evictions: int = 0
    peak_bytes: int = 0


@dataclass(slots=True)
class Kept:
    size: int
    born: int
    freq: int
    rank: Rank


class Replay:
    """One cache of `capacity` bytes in front of a trace. An entry larger than that is never kept."""

    def __init__(self, policy: Policy, capacity: int):
        self._policy = policy
        self._capacity = capacity
        self._kept: dict[int, Kept] = {}
        # An entry is in it once for each rank it has had; only its present one counts.
        self._ranks: list[tuple[Rank, int]] = []
        self._bytes = 0
        self._now = 0
        self.outcome = Outcome()

    def run(self, accesses: Sequence[Access]) -> Outcome:
        for access in accesses:
            self._now += 1
            kept = self._kept.get(access.entry)
            if access.use == "ask":
                self._count(access, hit=kept is not None)
            if kept is None:
                self._add(access)
            elif access.use == "ask":
                self._use(access, kept)
        return self.outcome

    def kept(self) -> list[int]:
        """The entries that are in the cache."""
        return list(self._kept)

    def _count(self, access: Access, hit: bool) -> None:
        for saved in (self.outcome.total, self.outcome.kinds.setdefault(access.kind, Saved())):
            saved.asked += 1
            saved.asked_s += access.cost_s
            if hit:
                saved.hits += 1
                saved.saved_s += access.cost_s
                saved.hit_bytes += access.size

    def _add(self, access: Access) -> None:
        """The newcomer is ranked by what was evicted before it came, and is not among those that make room for it."""
        if access.size > self._capacity:
            return
        kept = Kept(access.size, self._now, 1, self._policy.rank(1, access.size, access.cost_s, self._now, self._now))
        while self._bytes + access.size > self._capacity:
            self._evict()
        self._kept[access.entry] = kept
        heappush(self._ranks, (kept.rank, access.entry))
        self._bytes += access.size
        self.outcome.peak_bytes = max(self.outcome.peak_bytes, self._bytes)

    def _use(self, access: Access, kept: Kept) -> None:
        kept.freq += 1
        kept.rank = self._policy.rank(kept.freq, kept.size, access.cost_s, kept.born, self._now)
        heappush(self._ranks, (kept.rank, access.entry))

    def _evict(self) -> None:
        while True:
            rank, entry = heappop(self._ranks)
            if entry in self._kept and self._kept[entry].rank == rank:
                self._policy.evicted(rank)
                self._bytes -= self._kept.pop(entry).size
                self.outcome.evictions += 1
                return
