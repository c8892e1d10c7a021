"""Which ring of the pool is whose: one for each sequence that runs, and copies at the ends of blocks to go on from."""

from collections import OrderedDict
from collections.abc import Sequence

from videoserve.text.blocks import Hash
from videoserve.text.family import Pool


class Rings:
    """A sequence that begins behind blocks that were found needs what the ring held there; no copy, no beginning.

    What is copied goes, longest unused first.
    """

    def __init__(self, pool: Pool, streams: int):
        self._pool = pool
        self._spare = pool.rings - streams
        self._free = list(range(pool.rings))
        self._copies: OrderedDict[Hash, int] = OrderedDict()

    def usable(self, hashes: Sequence[Hash]) -> int:
        """How many of these blocks, the beginning of a sequence, it can go on from."""
        return next((count for count in range(len(hashes), 0, -1) if hashes[count - 1] in self._copies), 0)

    def begin(self, hashes: Sequence[Hash]) -> int:
        """A ring for a sequence behind these blocks, as usable() has them."""
        ring = self._free.pop()
        if hashes:
            self._copies.move_to_end(hashes[-1])
            self._pool.copy_ring(self._copies[hashes[-1]], ring)
        return ring

    def keep(self, ring: int, hash_: Hash) -> None:
        """Copies a ring for who begins with the blocks up to `hash_`; at most a block was computed behind those."""
        if hash_ in self._copies:
            self._copies.move_to_end(hash_)
            return
        if len(self._copies) == self._spare:
            self._free.append(self._copies.popitem(last=False)[1])
        copy = self._copies[hash_] = self._free.pop()
        self._pool.copy_ring(ring, copy)

    def end(self, ring: int) -> None:
        """Its sequence runs no more."""
        self._free.append(ring)
