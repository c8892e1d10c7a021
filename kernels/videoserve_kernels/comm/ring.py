"""Ring attention: keys and values go round, queries stay, and the parts are merged by their log-sum-exp."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from videoserve_kernels.attention import attend
from videoserve_kernels.comm.collectives import shift
from videoserve_kernels.comm.exchange import Group
from videoserve_kernels.comm.wire import Codec
from videoserve_kernels.merge import merge

Kernel = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def attend_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return attend(q, k, v, return_lse=True)


def attend_whole(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel | None) -> Tensor:
    """Attention over keys that are all here: nobody needs its log-sum-exp."""
    return attend(q, k, v) if kernel is None else kernel(q, k, v)[0]


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: Group,
    lengths: Sequence[int],
    codec: Codec,
    *,
    kernel: Kernel | None = None,
) -> Tensor:
    """Attention of this rank's queries over the keys of all ranks of the group.

    q [B, S, N, D], k and v [B, L, M, D] with L = lengths[index], 0 allowed; lengths are those of every rank. Returns
    [B, S, N, D] in q's dtype. size - 1 messages of keys with values, each under way while the block before it is
    attended; they are encoded once, where they start. Merged in at least float32. `kernel` takes the place of the
    attention door with its log-sum-exp.
    """
    if group.size == 1:
        return attend_whole(q, k, v, kernel)
    parts = Parts(q, kernel or attend_with_lse)
    shape = (k.shape[0], k.shape[2] + v.shape[2], k.shape[3])
    held = codec.encode(torch.cat((k, v), dim=2)).view(-1)
    counts = [held_size(length, shape, codec, k.dtype) for length in lengths]
    for turn in range(group.size):
        # The last block has been everywhere.
        under_way = shift(held, counts, group, turn=turn) if turn < group.size - 1 else None
        parts.add(k, v)
        if under_way is not None:
            held = under_way.wait()
            length = lengths[(group.index - turn - 1) % group.size]
            both = codec.decode(held, (shape[0], length, shape[1], shape[2]), k.dtype)
            k, v = both.chunk(2, dim=2)
    return parts.out()


def held_size(length: int, shape: tuple[int, int, int], codec: Codec, dtype: torch.dtype) -> int:
    """Elements of the wire's dtype that `length` tokens of keys and values take."""
    batch, heads, channels = shape
    wire_dtype = codec.wire_dtype(dtype)
    return batch * length * heads * codec.row_bytes(channels, dtype.itemsize) // wire_dtype.itemsize


class Parts:
    """The attention of one set of queries over the blocks of keys seen so far."""

    def __init__(self, q: Tensor, kernel: Kernel) -> None:
        self._q = q
        self._kernel = kernel
        self._merged: tuple[Tensor, Tensor] | None = None

    def add(self, k: Tensor, v: Tensor) -> None:
        """Takes one more block in; one without keys changes nothing."""
        if k.shape[1] == 0:
            return
        part = self._kernel(self._q, k, v)
        self._merged = part if self._merged is None else merge(*self._merged, *part)

    def out(self) -> Tensor:
        """Attention over all blocks, in the queries' dtype; ValueError when no block had a key."""
        if self._merged is None:
            raise ValueError("There are no keys to attend to: every rank of the ring holds 0 tokens.")
        return self._merged[0].to(self._q.dtype)
