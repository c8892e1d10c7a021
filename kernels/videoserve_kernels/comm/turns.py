"""Work on what every rank holds, of which each rank does a part for everybody: beside the messages that bring it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from videoserve_kernels.comm.collectives import check, in_order
from videoserve_kernels.comm.exchange import Group, exchange


def sum_in_turns(
    x: Tensor, counts: Sequence[int], work: Callable[[Tensor, int], Tensor], group: Group, *, results: Sequence[int]
) -> Tensor:
    """Σ over ranks of their work(x, index), flat [results[index]]: this rank's x goes round, and the parts come back.

    An all_gather and a reduce_scatter, message for message, but that work on one rank's x is done while others' are
    on their way. counts[i] is how many elements rank i has and results[i] what work makes of them; work is also told
    whose x it is, and is not called for nothing. Added in order of rank and in at least float32.
    """
    size, index = group.size, group.index
    check([x.numel()], [counts[index]], group)
    group.link.sequence.record("sum_in_turns", group.name, [*counts, *results], x.dtype)
    own = x.contiguous()
    coming = {}
    for distance in range(1, size):
        source, target = (index - distance) % size, (index + distance) % size
        piece = x.new_empty(counts[source])
        coming[source] = piece, exchange(group, "all_gather", {target: own}, {source: piece})
    parts: dict[int, Tensor] = {}
    mine = work(own, index) if counts[index] else None
    under_way = []
    for distance in range(1, size):
        source, target = (index - distance) % size, (index + distance) % size
        piece, handle = coming[source]
        handle.wait()
        done = {source: work(piece, source).contiguous()} if counts[source] else {}
        parts |= {target: mine.new_empty(results[index])} if mine is not None else {}
        back = {target: parts[target]} if mine is not None else {}
        under_way.append((exchange(group, "reduce_scatter", done, back), done))
    for handle, _ in under_way:
        handle.wait()
    if mine is None:
        return torch.empty(0)
    parts[index] = mine.reshape(-1)
    return in_order([parts[rank] for rank in range(size)], mine.dtype)
