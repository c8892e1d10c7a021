"""One layer's attention of DeepSeek-V4: a window of tokens, and entries that many tokens before it were made into."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from videoserve.text.models.deepseek_v4_pool import LayerCache
from videoserve.text.models.deepseek_v4_shape import Kind, V4Shape
from videoserve.text.models.deepseek_v4_step import Entries, Step, padded
from videoserve.text.models.deepseek_v4_weights import Compressor, Layer
from videoserve_kernels.compress import compress
from videoserve_kernels.indexer import top_entries
from videoserve_kernels.norm import rms_norm
from videoserve_kernels.norm_rope import rms_norm_rotate
from videoserve_kernels.rope import rotate
from videoserve_kernels.sparse import sparse_attention


class Attention:
    """`__call__` writes what a batch leaves behind into a layer's cache and returns what its tokens attended to.

    Only of the heads `heads`, all of them by default: sums over ranks that have the others are those of all heads.
    """

    def __init__(self, shape: V4Shape, layer: Layer, kind: Kind, *, heads: slice | None = None, overlaps: bool = True):
        self._shape, self._layer, self._kind, self._overlaps = shape, layer, kind, overlaps
        heads = slice(0, shape.heads) if heads is None else heads
        self._q_up = layer.q_up[heads.start * shape.head_dim : heads.stop * shape.head_dim]
        self._sinks = layer.sinks[heads]
        self._out = GroupedOut(layer.out_down, layer.out_up, heads, shape)
        # Queries are normalised without a weight.
        self._ones = torch.ones(shape.head_dim, device=layer.kv.device)

    def __call__(self, x: Tensor, step: Step, cache: LayerCache) -> Tensor:
        """x [t, C], normalised, of the tokens that this rank computes; returns [t, C]."""
        shape, layer = self._shape, self._layer
        tails = step.turns[self._kind]
        turns = padded(tails, shape.head_dim)
        kv = rms_norm_rotate(linear(x, layer.kv)[None], layer.kv_norm, turns, eps=shape.eps)[0, :, 0]  # [t, D]
        entries = step.entries.get(self._kind)
        rows = None if entries is None else self._rows(x)
        trading = step.tokens.gather(kv) if entries is None or rows is None else entries.borrowed.trade(kv, rows)
        if not self._overlaps:
            trading.wait()
        low = rms_norm(linear(x, layer.q_down), layer.q_norm, eps=shape.eps)  # [t, R]
        q = rms_norm_rotate(linear(low, self._q_up)[None], self._ones, turns, eps=shape.eps)[0]  # [t, N, D]
        every_kv, *borrowed = trading.wait()
        near = step.window.gather(cache.window, every_kv)
        if entries is None or rows is None:
            out = sparse_attention(q, near, step.at, sinks=self._sinks)
        else:
            self._make(rows, borrowed, entries, cache)
            numbers = self._choose(x, low, tails, step.rows, entries, cache)
            far_at = entries.everything(step.rows) if numbers is None else entries.chosen(step.rows, numbers)
            out = sparse_attention(q, near, step.at, cache.entries, far_at, sinks=self._sinks)
        # Keys are values here: what was turned by a key's position is turned back by the query's.
        return self._out(rotate(out[None], turns.conj().resolve_conj())[0])

    def _rows(self, x: Tensor) -> Tensor:
        """What entries are made of."""
        compressor, indexer = self._layer.compressor, self._layer.indexer
        assert compressor is not None
        rows = linear(x, compressor.project)
        return rows if indexer is None else torch.cat((rows, linear(x, indexer.keys.project)), dim=1)

    def _make(self, fresh: Tensor, borrowed: list[Tensor], entries: Entries, cache: LayerCache) -> None:
        """Writes the entries that the batch completes: this rank's own, and the others' when they have come."""
        compressor, indexer = self._layer.compressor, self._layer.indexer
        assert compressor is not None
        assert cache.rows is not None
        rows = entries.reach.gather(cache.rows, fresh, *borrowed)
        wide = len(compressor.project)
        made = [self._entries(compressor, rows[:, :wide], entries)]
        if indexer is not None:
            made.append(self._entries(indexer.keys, rows[:, wide:], entries))
        # The queries of the indexer need its keys, and attention needs all entries: nothing is left to do meanwhile.
        for pool, every in zip((cache.entries, cache.keys), entries.made.gather(*made).wait(), strict=False):
            assert pool is not None
            pool[entries.places] = every

    def _entries(self, compressor: Compressor, rows: Tensor, entries: Entries) -> Tensor:
        values, gates = rows.chunk(2, dim=1)
        made = compress(values, gates, compressor.bias, entries.members, entries.before)
        turns = padded(entries.turns, made.shape[1])
        return rms_norm_rotate(made[None], compressor.norm, turns, eps=self._shape.eps)[0, :, 0]

    def _choose(
        self, x: Tensor, low: Tensor, tails: Tensor, rows: Tensor, entries: Entries, cache: LayerCache
    ) -> Tensor | None:
        """Numbers of the entries that each token reads; None for all that it sees."""
        shape, indexer = self._shape, self._layer.indexer
        if indexer is None or entries.all.shape[1] <= shape.index_count:
            return None
        assert cache.keys is not None
        q = torch.unflatten(linear(low, indexer.q), 1, (shape.index_heads, shape.index_dim))
        q = rotate(q[None], padded(tails, shape.index_dim))[0]
        weights = linear(x, indexer.weights).float() * (shape.index_heads * shape.index_dim) ** -0.5
        return top_entries(q, weights, cache.keys, entries.all, rows, entries.seen, count=shape.index_count)


class GroupedOut:
    """The grouped output of some heads, in views of the weights of all: of whole groups, and of parts of others."""

    def __init__(self, down: Tensor, up: Tensor, heads: slice, shape: V4Shape):
        """down [G, R', N·D/G] and up [C, G·R']."""
        a_group, d = shape.heads // shape.groups, shape.head_dim
        self._pieces = []
        for groups, part in pieces_of(heads, a_group):
            rank = shape.out_rank
            self._pieces.append(
                (
                    groups.stop - groups.start,
                    len(range(part.start, part.stop)) * (groups.stop - groups.start) * d,
                    down[groups, :, part.start * d : part.stop * d].transpose(1, 2),
                    up[:, groups.start * rank : groups.stop * rank],
                )
            )

    def __call__(self, out: Tensor) -> Tensor:
        """out [t, N, D] of the heads; returns [t, C]."""
        flat, total, first = out.flatten(1), None, 0
        for groups, channels, down, up in self._pieces:
            grouped = torch.unflatten(flat[:, first : first + channels], 1, (groups, -1)).transpose(0, 1)
            first += channels
            mixed = torch.bmm(grouped, down).transpose(0, 1)  # [t, G, R']
            made = linear(mixed.flatten(1), up)
            total = made if total is None else total.add_(made)
        assert total is not None
        return total


def pieces_of(heads: slice, a_group: int) -> list[tuple[slice, slice]]:
    """Consecutive heads as groups, and which of their heads: whole groups together, parts of groups each alone."""
    pieces: list[tuple[slice, slice]] = []
    first = heads.start
    while first < heads.stop:
        group, offset = divmod(first, a_group)
        whole = (heads.stop - first) // a_group
        if offset == 0 and whole:
            pieces.append((slice(group, group + whole), slice(0, a_group)))
            first += whole * a_group
        else:
            end = min(a_group, offset + heads.stop - first)
            pieces.append((slice(group, group + 1), slice(offset, end)))
            first += end - offset
    return pieces
