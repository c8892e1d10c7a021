"""Where the tokens of one forward of DeepSeek-V4 read and write: found once, the same for all layers of a kind."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.text.batch import Batch
from videoserve.text.dealt import Dealt, deal
from videoserve.text.models.deepseek_v4_borrowed import Borrowed
from videoserve.text.models.deepseek_v4_pool import back
from videoserve.text.models.deepseek_v4_shape import Kind, Rope, V4Shape
from videoserve.text.pools import BLOCK
from videoserve_kernels.comm.exchange import Group


class Reach:
    """Rows of a batch's own tokens behind rows of positions before them, which rings of back + BLOCK places hold.

    `past` [P] are places of the flat rings to read first; then tokens `fresh` are written to `places`. What a chunk
    needs of itself it takes from its own rows: it may be longer than a ring.
    """

    def __init__(self, batch: Batch, back: int):
        size, device = back + BLOCK, batch.rows.device
        starts, lengths, rings = (torch.tensor(said, device=device) for said in zip(*batch.spans, strict=True))
        kept = starts.clamp(max=back)
        ends = kept.cumsum(0)
        row = torch.repeat_interleave(kept)
        position = torch.arange(len(row), device=device) - (ends - kept)[row] + (starts - kept)[row]
        self.past = rings[row] * size + position % size
        rows, positions = batch.rows.long(), batch.positions.long()
        self.fresh = (positions >= (starts + lengths)[rows] - size).nonzero()[:, 0]
        self.places = (rings[rows] * size + positions % size)[self.fresh]
        # What to add to a position to get the index of its row: before the batch's tokens, and among them.
        self._starts = starts
        self._old = ends - kept - (starts - kept)
        self._new = len(row) + lengths.cumsum(0) - lengths - starts

    def index(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Indices of these positions among past rows and then those of the batch; -1 for a negative position."""
        at = positions + torch.where(positions >= self._starts[rows], self._new[rows], self._old[rows])
        return at.masked_fill(positions < 0, -1)

    def gather(self, ring: Tensor, fresh: Tensor, *more: Tensor) -> Tensor:
        """Past rows and then those of the batch, [P + T, C], out of a ring [rings, size, C] that then has these.

        Rows that come behind them are only read.
        """
        flat = ring.flatten(0, 1)
        both = torch.cat((flat.index_select(0, self.past), fresh, *more))
        flat[self.places] = fresh[self.fresh]
        return both

    def of_mine(self, tokens: Dealt) -> "Reach":
        """The same with this rank's tokens as the only fresh ones; `index` stays that of all tokens."""
        mine = copy.copy(self)
        local = tokens.local(self.fresh)
        kept = (local >= 0).to(self.places.device)
        mine.fresh, mine.places = local.to(self.places.device)[kept], self.places[kept]
        return mine


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """The compressed entries of one kind of layers that a batch makes and sees; `made` says by which rank.

    members and before [g, P] are rows of each entry that this rank makes and turns complex64 [g, turned / 2] of its
    first token's position; places [G] is where all of them go. A token sees the first `seen` [t] entries of its
    sequence; those of each sequence lie at `all` [B, E]. `whole` is the reach of all tokens, `reach` of this rank's.
    """

    whole: Reach
    reach: Reach
    borrowed: Borrowed
    made: Dealt
    members: Tensor
    before: Tensor | None
    places: Tensor
    turns: Tensor
    seen: Tensor
    all: Tensor

    @classmethod
    def of(cls, batch: Batch, tokens: Dealt, rate: int, rope: Rope, *, overlaps: bool) -> "Entries":
        device = batch.rows.device
        reach = Reach(batch, back(rate, overlaps=overlaps))
        first = torch.tensor([span.start // rate for span in batch.spans], device=device)
        end = torch.tensor([(span.start + span.length) // rate for span in batch.spans], device=device)
        made = end - first
        row = torch.repeat_interleave(made)
        entry = torch.arange(len(row), device=device) - (made.cumsum(0) - made)[row] + first[row]
        own = entry[:, None] * rate + torch.arange(rate, device=device)
        most = max((span.start + span.length) // rate for span in batch.spans)
        places = places_of(batch.tables.long(), rate)[:, :most]
        members = reach.index(row[:, None], own)
        before = reach.index(row[:, None], own - rate) if overlaps else None
        dealt, borrowed = tokens, Borrowed.none(tokens)
        if tokens.group.size > 1:
            # An entry is made where its tokens are.
            dealt = Dealt.of(tokens.owner[members[:, -1].cpu() - len(reach.past)], tokens.group, device)
            borrowed = Borrowed.of(tokens, dealt, len(reach.past), before)
            members = borrowed.at(dealt.take(members))
            before = None if before is None else borrowed.at(dealt.take(before))
        return cls(
            whole=reach,
            reach=reach.of_mine(tokens) if tokens.group.size > 1 else reach,
            borrowed=borrowed,
            made=dealt,
            members=members,
            before=before,
            places=places[row, entry],
            turns=turns_at(dealt.take(entry) * rate, rope),
            seen=(tokens.take(batch.positions).long() + 1) // rate,
            all=places,
        )

    def chosen(self, rows: Tensor, numbers: Tensor) -> Tensor:
        """Where entries [T, K] of the tokens' sequences lie; -1 for those a token does not see, and for -1."""
        seen = (numbers >= 0) & (numbers < self.seen[:, None])
        return self.all[rows[:, None], numbers.clamp(min=0)].masked_fill(~seen, -1)

    def everything(self, rows: Tensor) -> Tensor:
        """Where all entries that a token sees lie, [T, E], -1 behind them."""
        return self.chosen(rows, torch.arange(self.all.shape[1], device=rows.device).expand(len(rows), -1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`tokens` says which rank computes which token: rows [t], `at` and turns are of this rank's.

    `at` [t, K] are rows of the window of each token, its own first; turns complex64 [t, turned / 2] by kind.
    """

    tokens: Dealt
    rows: Tensor
    window: Reach
    at: Tensor
    turns: Mapping[Kind, Tensor]
    entries: Mapping[Kind, Entries]

    @classmethod
    def of(cls, batch: Batch, shape: V4Shape, group: Group) -> "Step":
        tokens = Dealt.of(deal(batch.spans, unit_of(shape), group.size), group, batch.rows.device)
        rows, positions = tokens.take(batch.rows).long(), tokens.take(batch.positions).long()
        reach = Reach(batch, shape.window - 1)
        longest = max(span.start + span.length for span in batch.spans)
        ago = torch.arange(min(shape.window, longest), device=rows.device)
        near, far = turns_at(positions, shape.rope), turns_at(positions, shape.far_rope)
        return cls(
            tokens=tokens,
            rows=rows,
            window=reach,
            at=reach.index(rows[:, None], positions[:, None] - ago),
            turns={kind: near if kind == "sliding_attention" else far for kind in set(shape.kinds)},
            entries={
                kind: Entries.of(
                    batch, tokens, shape.rates[kind], shape.far_rope, overlaps=kind == "compressed_sparse_attention"
                )
                for kind in set(shape.kinds) - {"sliding_attention"}
            },
        )


def unit_of(shape: V4Shape) -> int:
    """Tokens that one rank computes in a row: no entry is made of tokens of two ranks."""
    return math.lcm(*(shape.rates[kind] for kind in set(shape.kinds) - {"sliding_attention"}), BLOCK)


def places_of(tables: Tensor, rate: int) -> Tensor:
    """Where the entries of each sequence lie in a pool, in their order; tables [B, W]. See LayerCache."""
    if rate >= BLOCK:
        blocks = rate // BLOCK
        return tables[:, blocks - 1 :: blocks]
    places = BLOCK // rate
    return (tables[..., None] * places + torch.arange(places, device=tables.device)).flatten(1)


def turns_at(positions: Tensor, rope: Rope) -> Tensor:
    """cos + i·sin of the angles of positions [S], complex64 [S, turned / 2], in the precision of transformers."""
    angles = positions.float()[:, None] * rope.rates.to(positions.device)
    return torch.polar(torch.full_like(angles, rope.scale), angles)


def padded(turns: Tensor, head_dim: int) -> Tensor:
    """Turns of whole heads, of which only the tail is turned."""
    return torch.nn.functional.pad(turns, (head_dim // 2 - turns.shape[1], 0), value=1)
