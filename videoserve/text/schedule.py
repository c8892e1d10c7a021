"""Which tokens of which sequences the next forward computes."""

from collections.abc import Callable, Iterator

from videoserve.text.blocks import Blocks
from videoserve.text.pools import BLOCK
from videoserve.text.prefix import extend
from videoserve.text.rings import Rings
from videoserve.text.sequence import Sequence, blocks_for

# Brings in what is kept elsewhere of a sequence that begins; how many blocks behind those it has.
Restore = Callable[[Sequence], int]


class Schedule:
    """Sequences that run hold blocks; those that wait hold none. The urgent first, in `Sequence.order`.

    A forward has `budget` tokens: one for each running sequence that only grows, then pieces of prompts. When blocks
    run out the least urgent gives its own back and waits, to be computed again.
    """

    def __init__(
        self,
        blocks: Blocks,
        *,
        budget: int,
        streams: int,
        restore: Restore = lambda sequence: 0,
        rings: Rings | None = None,
    ):
        """`budget` tokens are enough for a token of each of `streams` sequences.

        `rings` of a family whose sequences leave more than blocks hold.
        """
        self.blocks, self._rings = blocks, rings
        self._budget, self._streams, self._restore = budget, streams, restore
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter((*self.running, *self.waiting))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self.waiting.sort(key=lambda s: s.order)

    def drop(self, sequence: Sequence) -> None:
        """It ends, for whatever reason: what it held is free at once."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._give_back(sequence)
        else:
            self.waiting.remove(sequence)

    def pick(self) -> list[tuple[Sequence, int]]:
        """Sequences of the next forward, each with how many of its tokens to compute."""
        self._begin()
        left = self._budget
        picked = []
        for sequence in [s for s in self.running if s.missing == 1]:
            if sequence in self.running and self._grow(sequence):
                picked.append((sequence, 1))
                left -= 1
        for sequence in [s for s in self.running if s.missing > 1]:
            if left and sequence in self.running:
                count = min(sequence.missing, left)
                if sequence.computed < sequence.fork:
                    count = min(count, sequence.fork - sequence.computed)
                picked.append((sequence, count))
                left -= count
        return [(sequence, count) for sequence, count in picked if sequence in self.running]

    def computed(self, sequence: Sequence, count: int) -> None:
        """Its next `count` tokens have been computed: blocks that became full can be found."""
        sequence.computed += count
        extend(sequence.hashes, sequence.root, sequence.tokens, sequence.computed)
        for i in range(sequence.sealed, sequence.computed // BLOCK):
            self.blocks.seal(sequence.blocks[i], sequence.hashes[i])
        sequence.sealed = sequence.computed // BLOCK
        if sequence.computed == sequence.fork:
            self._copy_ring(sequence, sequence.fork)
        elif not sequence.missing and not sequence.new:
            # Whoever asks the same again begins before its last token.
            self._copy_ring(sequence, sequence.computed - 1)

    def _begin(self) -> None:
        """Lets those that wait run, as far as there are streams and blocks, or less urgent ones that give way."""
        for sequence in list(self.waiting):
            if not sequence.may_begin:
                continue
            while not self._admit(sequence):
                if not self.running or self.running[-1].order < sequence.order:
                    return
                self._preempt(self.running[-1])

    def _admit(self, sequence: Sequence) -> bool:
        if len(self.running) >= self._streams:
            return False
        found = self._usable(sequence, self.blocks.find(sequence.known()))
        taken = self.blocks.take(sequence.room - len(found), found[-1] if found else None)
        if taken is None:
            self.blocks.release(found)
            return False
        sequence.blocks = found + taken
        sequence.computed = len(found) * BLOCK
        sequence.sealed = len(found)
        if self._rings is not None:
            sequence.ring = self._rings.begin(sequence.hashes[: len(found)])
        more = self._restore(sequence)
        if more:
            self.computed(sequence, more * BLOCK)
        if not sequence.new:
            sequence.cached = sequence.computed
        self.waiting.remove(sequence)
        self.running.append(sequence)
        self.running.sort(key=lambda s: s.order)
        return True

    def _usable(self, sequence: Sequence, found: list[int]) -> list[int]:
        """The blocks that it can begin behind, of those that it found and holds; it gives the others back."""
        if self._rings is None:
            return found
        usable = self._rings.usable(sequence.hashes[: len(found)])
        self.blocks.release(found[usable:])
        # So many begin alike: the next one shall find a copy of the ring where they part.
        sequence.fork = len(found) * BLOCK if usable < len(found) else 0
        return found[:usable]

    def _copy_ring(self, sequence: Sequence, upto: int) -> None:
        """Keeps the ring for who begins with the whole blocks within the first `upto` tokens."""
        if self._rings is not None and upto >= BLOCK:
            self._rings.keep(sequence.ring, sequence.hashes[upto // BLOCK - 1])

    def _grow(self, sequence: Sequence) -> bool:
        """Room for one more token. False when the sequence itself was the least urgent, and waits now."""
        while blocks_for(sequence.computed + 1) > len(sequence.blocks):
            more = self.blocks.take(1, sequence.blocks[-1])
            if more is not None:
                sequence.blocks += more
                continue
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.computed = sequence.sealed = 0
        sequence.preemptions += 1
        self.add(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.blocks)
        sequence.blocks = []
        if self._rings is not None:
            self._copy_ring(sequence, sequence.computed)
            self._rings.end(sequence.ring)
