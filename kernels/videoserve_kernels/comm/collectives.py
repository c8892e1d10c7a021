"""The collectives. Each returns a Handle at once: `.wait()` right away is the blocking call.

Every rank of the group calls the same ones in the same order. Sizes are never communicated: whoever calls knows what
every rank holds. Results are new tensors unless said otherwise, and a group of one rank hands its input back.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from videoserve_kernels.comm.exchange import Group, Handle, exchange
from videoserve_kernels.comm.split import slices, split


def all_to_all(parts: Sequence[Tensor], counts: Sequence[Sequence[int]], group: Group) -> Handle[list[Tensor]]:
    """Sends parts[j] to rank j and returns what each rank sent here, flat, in order of rank.

    counts[i][j] is how many elements rank i sends to rank j, 0 allowed, the same table on every rank; parts are
    contiguous and of one dtype. This rank's own part comes back without a copy. ValueError when a part has another
    size than the table says.
    """
    check([part.numel() for part in parts], counts[group.index], group)
    return traded("all_to_all", parts, counts, group)


def all_gather(x: Tensor, counts: Sequence[int], group: Group) -> Handle[list[Tensor]]:
    """What every rank holds, flat, in order of rank; counts[i] is how many elements rank i has, 0 allowed."""
    check([x.numel()], [counts[group.index]], group)
    own = x.contiguous()
    return traded("all_gather", [own] * group.size, [[count] * group.size for count in counts], group)


def reduce_scatter(x: Tensor, counts: Sequence[int], group: Group) -> Handle[Tensor]:
    """The sum over all ranks of this rank's share, flat [counts[index]], in x's dtype.

    x is cut, flat, into shares of `counts` elements, 0 allowed. Added in order of rank and in at least float32: the
    result depends neither on who computes it nor on who was first.
    """
    check([x.numel()], [sum(counts)], group)
    shares = torch.split(x.contiguous().view(-1), list(counts))
    table = [list(counts)] * group.size
    return traded("reduce_scatter", shares, table, group).then(lambda pieces: in_order(pieces, x.dtype))


def all_reduce(x: Tensor, group: Group) -> Handle[Tensor]:
    """The sum over all ranks, the same bits on each, in x's shape and dtype; added as in reduce_scatter.

    Two exchanges: the second begins when somebody waits.
    """
    counts = split(x.numel(), group.size)
    reduced = reduce_scatter(x, counts, group)

    def gather() -> Tensor:
        pieces = all_gather(reduced.wait(), counts, group).wait()
        return torch.cat(pieces).view(x.shape)

    return Handle(gather)


def broadcast(x: Tensor, group: Group, source: int = 0) -> Handle[Tensor]:
    """Overwrites contiguous x with what the rank at index `source` of the group has in it, and returns it.

    One message from the source to each of the others.
    """
    group.link.sequence.record("broadcast", group.name, [x.numel(), source], x.dtype)
    if group.index == source:
        outgoing = {peer: x for peer in range(group.size) if peer != source}
        return exchange(group, "broadcast", outgoing, {}).then(lambda _: x)
    return exchange(group, "broadcast", {}, {source: x}).then(lambda _: x)


def shift(x: Tensor, counts: Sequence[int], group: Group, *, turn: int = 0) -> Handle[Tensor]:
    """Passes what this rank holds on to the next one and returns what the one before held, flat.

    counts[i] is how many elements the block that rank i had at turn 0 has; at turn t this rank holds the block of rank
    index - t and gets that of rank index - t - 1. Both stay alive until the wait: the shift overlaps with work on x.
    """
    size, index = group.size, group.index
    check([x.numel()], [counts[(index - turn) % size]], group)
    group.link.sequence.record("shift", group.name, [*counts, turn], x.dtype)
    coming = x.new_empty(counts[(index - turn - 1) % size]) if size > 1 else x.view(-1)
    before, after = {(index - 1) % size: coming}, {(index + 1) % size: x.contiguous()}
    if size == 1:
        before, after = {}, {}
    return exchange(group, "shift", after, before).then(lambda _: coming)


def traded(op: str, parts: Sequence[Tensor], counts: Sequence[Sequence[int]], group: Group) -> Handle[list[Tensor]]:
    """parts[j] to every rank j, and what came from each."""
    index = group.index
    group.link.sequence.record(op, group.name, [count for row in counts for count in row], parts[index].dtype)
    coming = [
        parts[index].view(-1) if peer == index else parts[index].new_empty(counts[peer][index])
        for peer in range(group.size)
    ]
    peers = [peer for peer in range(group.size) if peer != index]
    outgoing = {peer: parts[peer].contiguous() for peer in peers}
    return exchange(group, op, outgoing, {peer: coming[peer] for peer in peers}).then(lambda _: coming)


def in_order(pieces: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The sum of equal shapes, one after the other, rounded to dtype once."""
    total = pieces[0].to(torch.promote_types(dtype, torch.float32), copy=True)
    for piece in pieces[1:]:
        total += piece
    return total.to(dtype)


def check(sizes: Sequence[int], told: Sequence[int], group: Group) -> None:
    if list(sizes) != list(told):
        raise ValueError(
            f"Rank {group.index} of the group {group.name} holds {list(sizes)} elements where {list(told)} were told."
        )


def cut(x: Tensor, sizes: Sequence[int], dim: int) -> tuple[Tensor, ...]:
    """Views of the consecutive shares of x along an axis."""
    return tuple(x.narrow(dim, share.start, share.stop - share.start) for share in slices(tuple(sizes)))
