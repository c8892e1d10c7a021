"""Ulysses: tokens are traded for heads before attention and heads for tokens after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from videoserve_kernels.comm.collectives import all_to_all, cut
from videoserve_kernels.comm.exchange import Group, Handle
from videoserve_kernels.comm.heads import Heads
from videoserve_kernels.comm.wire import Codec, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Trade:
    """The two exchanges of one attention: what goes where, and in which shape it arrives.

    `lengths` are the tokens of every rank of the group, before the trade; `batch`, `channels` and `dtype` are those of
    the tensors.
    """

    group: Group
    codec: Codec
    heads: Heads
    lengths: tuple[int, ...]
    batch: int
    channels: int
    dtype: torch.dtype

    def to_heads(self, for_each: Sequence[tuple[Tensor, ...]], piece: int) -> Handle[tuple[Tensor, ...]]:
        """Starts the way there of one piece: own tokens of everybody's heads to everybody's tokens of own heads.

        for_each[j] are q [B, S, h_j·shared, D], k and v [B, S, h_j, D] for rank j. The handle gives the three for this
        rank with the tokens of the whole group, [B, ΣS, …, D]. q, k and v travel as one message.
        """
        widths = [heads * (self.heads.shared + 2) for heads in self.heads.of_piece(piece)]
        counts = [[length * width for width in widths] for length in self.lengths]
        mine = self.heads.of_piece(piece)[self.group.index]
        arriving = [(self.batch, length, widths[self.group.index], self.channels) for length in self.lengths]
        sent = self._send([torch.cat(qkv, dim=2) for qkv in for_each], counts, arriving)
        return sent.then(lambda parts: cut(torch.cat(parts, dim=1), [mine * self.heads.shared, mine, mine], dim=2))

    def to_tokens(self, out: Tensor, piece: int) -> Handle[list[Tensor]]:
        """Starts the way back of one piece: all tokens of own heads [B, ΣS, h, D] to own tokens of everybody's heads.

        The handle gives one [B, S, h_j, D] for every rank j.
        """
        widths = [heads * self.heads.shared for heads in self.heads.of_piece(piece)]
        counts = [[length * width for length in self.lengths] for width in widths]
        length = self.lengths[self.group.index]
        arriving = [(self.batch, length, width, self.channels) for width in widths]
        return self._send(list(cut(out, self.lengths, dim=1)), counts, arriving)

    def _send(
        self, parts: list[Tensor], rows: Sequence[Sequence[int]], arriving: Sequence[Shape]
    ) -> Handle[list[Tensor]]:
        """Encodes and sends part j to rank j; rows[i][j] rows of D channels a batch element go from rank i to j.

        This rank's own part does not travel and stays as it is.
        """
        index = self.group.index
        wire_dtype = self.codec.wire_dtype(self.dtype)
        row = self.batch * self.codec.row_bytes(self.channels, self.dtype.itemsize) // wire_dtype.itemsize
        counts = [[0 if i == j else row * count for j, count in enumerate(line)] for i, line in enumerate(rows)]
        nothing = torch.empty(0, dtype=wire_dtype, device=parts[index].device)
        encoded = [nothing if peer == index else self.codec.encode(part) for peer, part in enumerate(parts)]

        def decoded(wires: list[Tensor]) -> list[Tensor]:
            return [
                parts[index] if peer == index else self.codec.decode(wire, arriving[peer], self.dtype)
                for peer, wire in enumerate(wires)
            ]

        return all_to_all(encoded, counts, self.group).then(decoded)


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    trade: Trade,
    pieces: int,
    inner: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """Attention with the tokens of the whole group, each rank doing `inner` for its share of the heads.

    q [B, S, N, D]; k and v [B, S, M, D] with S = trade.lengths[index]; `inner` gets q [B, ΣS, n, D], k and v
    [B, ΣS, m, D]. Returns [B, S, N, D]. With several pieces the exchange of the next and the way back of the last are
    under way while one is attended: the same bytes, in `pieces` times as many messages.
    """
    key_sizes = list(chain.from_iterable(trade.heads.sizes))
    query_sizes = [heads * trade.heads.shared for heads in key_sizes]
    shares = list(zip(cut(q, query_sizes, 2), cut(k, key_sizes, 2), cut(v, key_sizes, 2), strict=True))
    coming = trade.to_heads(shares[0::pieces], 0)
    going = []
    for piece in range(pieces):
        here = coming.wait()
        if piece + 1 < pieces:
            coming = trade.to_heads(shares[piece + 1 :: pieces], piece + 1)
        going.append(trade.to_tokens(inner(*here), piece))
    back = [handle.wait() for handle in going]
    return torch.cat([back[piece][rank] for rank in range(trade.group.size) for piece in range(pieces)], dim=2)
