"""What a rank sends in one forward of DeepSeek-V4, as formulas: the planner's figures, and what counters must show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from videoserve.text.batch import Span
from videoserve.text.models.deepseek_v4_pool import row_width, sizes_of
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.models.deepseek_v4_step import unit_of
from videoserve.text.sharing import Layout
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.split import split

# An expert's number, as it travels with a token.
NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """`rank` of `ranks` computes tokens of `spans`; the logits of the last one of each are wanted.

    `itemsize` is of the model's type; sums of up to `at_once_bytes` are made in one exchange.
    """

    shape: V4Shape
    spans: Sequence[Span]
    rank: int
    ranks: int
    itemsize: int
    at_once_bytes: int = 0

    def by(self, layout: Layout) -> Traffic:
        """Of one forward."""
        parts = self._by_heads() if layout == "heads" else self._by_tokens()
        return sum(parts, Traffic())

    def _by_heads(self) -> Iterator[Traffic]:
        tokens = sum(span.length for span in self.spans)
        for _ in range(2 * len(self.shape.kinds)):
            yield self._summed(tokens * self.shape.width)

    def _by_tokens(self) -> Iterator[Traffic]:
        shape = self.shape
        counts = [sum(owners.count(rank) for owners in self._owners()) for rank in range(self.ranks)]
        mine = counts[self.rank]
        travels = shape.width * self.itemsize + shape.taken * (self.itemsize + NUMBER_BYTES)
        for layer, kind in enumerate(shape.kinds):
            yield self._to_all(mine * shape.head_dim * self.itemsize)
            if rate := shape.rate(layer):
                sparse = kind == "compressed_sparse_attention"
                made, lent = self._entries(rate)
                yield self._to_all(made * (shape.head_dim + (shape.index_dim if sparse else 0)) * self.itemsize)
                # Beside what goes to all anyway: no message of its own.
                yield Traffic(bytes=lent * row_width(shape, layer) * self.itemsize if sparse else 0)
            yield self._to_all(mine * travels)
            others = [count for rank, count in enumerate(counts) if rank != self.rank and count]
            yield Traffic(bytes=sum(others) * shape.width * self.itemsize, messages=len(others))
        for kind in set(shape.kinds) - {"sliding_attention"}:
            layers = [layer for layer, of in enumerate(shape.kinds) if of == kind]
            _, (kept, channels) = sizes_of(shape, layers[0])["rows"]
            left = sum(owners[-kept:].count(self.rank) for owners in self._owners())
            yield self._to_all(left * len(layers) * channels * self.itemsize)
        last = sum(owners[-1] == self.rank for owners in self._owners())
        yield self._to_all(last * shape.width * self.itemsize)

    def _owners(self) -> Iterator[list[int]]:
        """Whose the tokens of each span are."""
        unit, before = unit_of(self.shape), 0
        for start, length, _ in self.spans:
            numbers = [position // unit - start // unit + before for position in range(start, start + length)]
            before = numbers[-1] + 1
            yield [number % self.ranks for number in numbers]

    def _entries(self, rate: int) -> tuple[int, int]:
        """Entries that this rank makes, and rows of tokens of its own that others need for theirs."""
        made, lent = 0, 0
        for span, owners in zip(self.spans, self._owners(), strict=True):
            for entry in range(span.start // rate, (span.start + span.length) // rate):
                maker = owners[(entry + 1) * rate - 1 - span.start]
                made += maker == self.rank
                before = range(max((entry - 1) * rate, span.start), entry * rate)
                lent += sum(maker != self.rank == owners[position - span.start] for position in before)
        return made, lent

    def _to_all(self, size: int) -> Traffic:
        others = self.ranks - 1
        return Traffic(bytes=others * size, messages=others if size else 0)

    def _summed(self, values: int) -> Traffic:
        """A sum over all ranks of so many values."""
        if values * self.itemsize <= self.at_once_bytes:
            return self._to_all(values * self.itemsize)
        shares = split(values, self.ranks)
        own = shares[self.rank]
        scattered = Traffic(
            bytes=(values - own) * self.itemsize,
            messages=sum(share > 0 for rank, share in enumerate(shares) if rank != self.rank),
        )
        return scattered + self._to_all(own * self.itemsize)
