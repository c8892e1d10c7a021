"""What a rank sends in one self-attention: what plans are judged by, and counters must show."""

from collections.abc import Sequence
from dataclasses import dataclass

from videoserve_kernels.comm.codecs import row_bytes
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.heads import Heads
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.split import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The self-attention of one layer: `length` tokens, heads of D channels, `itemsize` bytes a value."""

    batch: int
    length: int
    query_heads: int
    key_heads: int
    channels: int
    itemsize: int


def sent(layer: Layer, plan: ParallelPlan, place: int) -> Traffic:
    """What the rank at index `place` of the sequence group sends, whatever the lengths and heads.

    For even ones, with q the bytes of one rank's queries and f key heads a query head, that is
    (2 + 2f) · q · (U - 1) / U + 2f · q · (R - 1) in 2 · G · (U - 1) + G · (R - 1) messages.
    """
    ring, ulysses = divmod(place, plan.ulysses)
    lengths = split(layer.length, plan.ring * plan.ulysses)
    blocks = [sum(lengths[row * plan.ulysses : (row + 1) * plan.ulysses]) for row in range(plan.ring)]
    group = lengths[ring * plan.ulysses : (ring + 1) * plan.ulysses]
    heads = Heads.of(layer.query_heads, layer.key_heads, plan.ulysses, plan.head_groups)
    row = layer.batch * row_bytes(plan.codec, layer.channels, layer.itemsize)
    total = Traffic()
    for piece in range(plan.head_groups):
        each = heads.of_piece(piece)
        peers = [peer for peer in range(plan.ulysses) if peer != ulysses]
        there = [group[ulysses] * each[peer] * (heads.shared + 2) for peer in peers]
        back = [group[peer] * each[ulysses] * heads.shared for peer in peers]
        # Turn t passes on the block of the rank t places before.
        round_trip = [blocks[(ring - turn) % plan.ring] * each[ulysses] * 2 for turn in range(plan.ring - 1)]
        total += messages(there, row) + messages(back, row) + messages(round_trip, row)
    return total


def messages(rows: Sequence[int], row: int) -> Traffic:
    """Messages of so many rows of `row` bytes; empty ones are not sent."""
    return Traffic(bytes=sum(rows) * row, messages=sum(1 for count in rows if count))
