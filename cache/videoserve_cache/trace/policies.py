"""Which entry goes first when a cache is full: policies as the rank that an entry has from its last access on."""

from typing import Final, Protocol

from videoserve_cache.trace.gdsf import priority

Rank = tuple[float, int]


class Policy(Protocol):
    def rank(self, freq: int, size: int, cost_s: float, born: int, now: int) -> Rank:
        """The lowest goes first. `freq` counts accesses since the entry came, `born` and `now` all accesses so far."""

    def evicted(self, rank: Rank) -> None:
        """An entry of this rank had to go."""


class Gdsf:
    """Seconds saved a byte, aged by what was evicted."""

    def __init__(self) -> None:
        self._floor = 0.0

    def rank(self, freq: int, size: int, cost_s: float, born: int, now: int) -> Rank:
        return priority(self._floor, freq, cost_s, size), now

    def evicted(self, rank: Rank) -> None:
        self._floor = max(self._floor, rank[0])


class Lru:
    """Least recently used."""

    def rank(self, freq: int, size: int, cost_s: float, born: int, now: int) -> Rank:
        return 0.0, now

    def evicted(self, rank: Rank) -> None:
        pass


class Lfu(Lru):
    """Least often used since it came, of these the least recently used."""

    def rank(self, freq: int, size: int, cost_s: float, born: int, now: int) -> Rank:
        return float(freq), now


class Fifo(Lru):
    """First in, first out."""

    def rank(self, freq: int, size: int, cost_s: float, born: int, now: int) -> Rank:
        return 0.0, born


POLICIES: Final[dict[str, type[Policy]]] = {"gdsf": Gdsf, "lru": Lru, "lfu": Lfu, "fifo": Fifo}
