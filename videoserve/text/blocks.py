"""Which blocks of the pool are free, held, or kept for whoever begins with the same tokens."""

from collections import OrderedDict
from collections.abc import Sequence

Hash = bytes


class Blocks:
    """Every block is in one state: free; held by one or several sequences; or kept, by nobody held and findable.

    What is kept goes, longest unused first, when nothing is free.
    """

    def __init__(self, total: int):
        self.total = total
        self._free = set(range(total))
        self._holders: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._block_of: dict[Hash, int] = {}
        self._hash_of: dict[int, Hash] = {}

    @property
    def available(self) -> int:
        """How many `take` could give."""
        return len(self._free) + len(self._kept)

    def counts(self) -> dict[str, int]:
        return {"free": len(self._free), "held": len(self._holders), "kept": len(self._kept)}

    def find(self, hashes: Sequence[Hash]) -> list[int]:
        """The blocks of the longest known beginning, held from now on once more."""
        found = []
        for hash_ in hashes:
            block = self._block_of.get(hash_)
            if block is None:
                break
            found.append(block)
        for block in found:
            self._kept.pop(block, None)
            self._holders[block] = self._holders.get(block, 0) + 1
        return found

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """Blocks that nobody holds, in a row where there is one, best behind `after`; None when there are too few."""
        if count > self.available:
            return None
        while len(self._free) < count:
            self._forget(self._kept.popitem(last=False)[0])
        taken = self._row(count, after) or sorted(self._free)[:count]
        self._free.difference_update(taken)
        self._holders.update(dict.fromkeys(taken, 1))
        return taken

    def seal(self, block: int, hash_: Hash) -> None:
        """The block is full of what `hash_` stands for: others may find it, unless they find another one."""
        if hash_ not in self._block_of and block not in self._hash_of:
            self._block_of[hash_] = block
            self._hash_of[block] = hash_

    def knows(self, hash_: Hash) -> bool:
        return hash_ in self._block_of

    def release(self, blocks: Sequence[int]) -> None:
        """A sequence holds them no more. Its last ones go first when room is needed: others share its beginning."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                if block in self._hash_of:
                    self._kept[block] = None
                else:
                    self._free.add(block)

    def unseal(self, blocks: Sequence[int]) -> None:
        """Nobody finds these any more; they are held."""
        for block in blocks:
            if block in self._hash_of:
                del self._block_of[self._hash_of.pop(block)]

    def forget(self) -> None:
        """Nobody finds what is here so far; those who hold blocks go on."""
        self._free.update(self._kept)
        self._kept.clear()
        self._block_of.clear()
        self._hash_of.clear()

    def _forget(self, block: int) -> None:
        del self._block_of[self._hash_of.pop(block)]
        self._free.add(block)

    def _row(self, count: int, after: int | None) -> list[int] | None:
        if after is not None and all(after + i in self._free for i in range(1, count + 1)):
            return list(range(after + 1, after + count + 1))
        length = 0
        for block in range(self.total):
            length = length + 1 if block in self._free else 0
            if length == count:
                return list(range(block - count + 1, block + 1))
        return None
