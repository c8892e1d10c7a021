"""Tokens of a batch, or what is made of them, that are dealt out to ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.text.batch import Span
from videoserve_kernels.comm.collectives import all_gather
from videoserve_kernels.comm.exchange import Group, Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """`owner` [T], on the CPU, is the rank that has each; `mine` [t] are this rank's, and `counts` how many each has.

    What the ranks have, one rank's after the other's, has number i at `order` [T].
    """

    group: Group
    owner: Tensor
    counts: tuple[int, ...]
    mine: Tensor
    order: Tensor

    @classmethod
    def of(cls, owner: Tensor, group: Group, device: torch.device) -> "Dealt":
        if group.size == 1:
            everything = torch.arange(len(owner), device=device)
            return cls(group=group, owner=owner, counts=(len(owner),), mine=everything, order=everything)
        by_rank = owner.argsort(stable=True)
        counts = torch.bincount(owner, minlength=group.size).tolist()
        first = sum(counts[: group.index])
        return cls(
            group=group,
            owner=owner,
            counts=tuple(counts),
            mine=by_rank[first : first + counts[group.index]].to(device),
            order=by_rank.argsort().to(device),
        )

    def take(self, x: Tensor) -> Tensor:
        """This rank's rows of x [T, …]."""
        return x if self.group.size == 1 else x.index_select(0, self.mine)

    def local(self, numbers: Tensor) -> Tensor:
        """Which of this rank's own these numbers are, -1 for others'; on the CPU."""
        places = torch.full((len(self.owner),), -1)
        places[self.mine.cpu()] = torch.arange(len(self.mine))
        return places[numbers.cpu()]

    def gather(self, *parts: Tensor) -> Handle[tuple[Tensor, ...]]:
        """Rows of everybody, each [T, C], of what this rank has of them, [t, C]; one exchange."""
        if self.group.size == 1:
            return Handle(lambda: parts)
        widths = [part.shape[1] for part in parts]
        width = sum(widths)
        mine = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        pieces = all_gather(mine.reshape(-1), [count * width for count in self.counts], self.group)
        return pieces.then(lambda found: torch.split(self.in_order(torch.cat(found).view(-1, width)), widths, dim=1))

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows as the ranks have them, one rank's after the other's, in the order of their numbers."""
        return rows.index_select(0, self.order)


def deal(spans: Sequence[Span], unit: int, ranks: int) -> Tensor:
    """Which rank has each token of a batch, [T]: units of consecutive positions go round the ranks.

    A unit begins at a multiple of its length. A token's work grows with its position: whoever had a piece in a row
    would have less of it than who has the next, or more.
    """
    if ranks == 1:
        return torch.zeros(sum(span.length for span in spans), dtype=torch.int64)
    owners, dealt = [], 0
    for span in spans:
        units = torch.arange(span.start, span.start + span.length) // unit - span.start // unit
        owners.append((units + dealt) % ranks)
        dealt += int(units[-1]) + 1
    return torch.cat(owners)
