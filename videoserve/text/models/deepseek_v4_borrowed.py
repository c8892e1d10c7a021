"""Rows that a rank needs of another's tokens to make entries of its own: an entry also reads the tokens before it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.text.dealt import Dealt
from videoserve_kernels.comm.collectives import all_to_all
from videoserve_kernels.comm.exchange import Handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrowed:
    """table[i][j] rows go from rank i to rank j; `lent` has which of this rank's go to each.

    `places` [P + T] is where rows of the past and of all tokens are among the past ones, this rank's own and those
    that it borrows; -1 for what it does not have.
    """

    tokens: Dealt
    table: tuple[tuple[int, ...], ...]
    lent: tuple[Tensor, ...]
    places: Tensor

    @classmethod
    def none(cls, tokens: Dealt) -> "Borrowed":
        """Of a rank that has all tokens."""
        return cls(tokens=tokens, table=((0,),), lent=(), places=torch.empty(0))

    @classmethod
    def of(cls, tokens: Dealt, made: Dealt, past: int, before: Tensor | None) -> "Borrowed":
        """before [G, P] are rows that each entry made reads beside its own, past ones first; -1 is none."""
        ranks, count = tokens.group.size, len(tokens.owner)
        needed = torch.zeros(ranks, count, dtype=torch.bool)
        if before is not None:
            read = before.cpu() - past
            entry, place = (read >= 0).nonzero(as_tuple=True)
            needed[made.owner[entry], read[entry, place]] = True
            needed[tokens.owner, torch.arange(count)] = False
        me = tokens.group.index
        borrowed = needed[me].nonzero()[:, 0]
        borrowed = borrowed[tokens.owner[borrowed].argsort(stable=True)]
        mine, device = tokens.mine.cpu(), tokens.mine.device
        places = torch.full((past + count,), -1)
        for first, rows in ((0, torch.arange(past)), (past, mine + past), (past + len(mine), borrowed + past)):
            places[rows] = torch.arange(first, first + len(rows))
        counted = [[int(needed[to, tokens.owner == rank].sum()) for to in range(ranks)] for rank in range(ranks)]
        return cls(
            tokens=tokens,
            table=tuple(map(tuple, counted)),
            lent=tuple(tokens.local(needed[to].nonzero()[:, 0][tokens.owner[needed[to]] == me]).to(device)
                       for to in range(ranks)),
            places=places.to(device),
        )  # fmt: skip

    def at(self, rows: Tensor) -> Tensor:
        """Where these rows of the past and of all tokens are; -1 for none."""
        return torch.where(rows < 0, -1, self.places[rows.clamp(min=0)])

    def trade(self, kv: Tensor, rows: Tensor) -> Handle[tuple[Tensor, ...]]:
        """All tokens' kv [T, D] in their order, and the rows [h, C] that this rank borrows; one exchange."""
        group, counts = self.tokens.group, self.tokens.counts
        if group.size == 1:
            return Handle(lambda: (kv,))
        if not any(map(any, self.table)):
            return self.tokens.gather(kv)
        me, width, channels = group.index, kv.shape[1], rows.shape[1]
        own = kv.reshape(-1)
        parts = [own if to == me else torch.cat((own, rows[self.lent[to]].flatten())) for to in range(group.size)]
        table = [[counts[rank] * width + lent * channels for lent in self.table[rank]] for rank in range(group.size)]

        def apart(found: list[Tensor]) -> tuple[Tensor, ...]:
            cut = [counts[rank] * width for rank in range(group.size)]
            near = torch.cat([piece[:end] for piece, end in zip(found, cut, strict=True)]).view(-1, width)
            lent = torch.cat([piece[end:] for piece, end in zip(found, cut, strict=True)]).view(-1, channels)
            return self.tokens.in_order(near), lent

        return all_to_all(parts, table, group).then(apart)
