"""Triton: the low-rank addition in one pass over its input and its output."""

import triton
import triton.language as tl
from torch import Tensor

# 64 channels a turn suit the cards' products.
ROWS, CHANNELS = 64, 64
# Programs that keep a large card busy: few rows, as in decoding, share out the output channels instead.
ENOUGH_PROGRAMS = 256


def warps(ranks: int) -> int:
    """Warps for a tile of rows by so many ranks: with the sums beside it, up to 32 numbers of it a thread."""
    return 8 if ranks > 64 else 4


@triton.jit
def add_to_tile(
    y, x, a, b, at, mine, start, stop, rows, inputs, outputs, rank,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """y += (x Aᵀ) Bᵀ for the rows `at`, written for those that are `mine`, and output channels start..stop-1."""
    ranks = tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_C)
    x_row = x + at.to(tl.int64)[:, None] * inputs
    small = tl.zeros([BLOCK_M, BLOCK_R], dtype=tl.float32)
    for first in range(0, inputs, BLOCK_C):
        channel = first + columns
        inside = channel < inputs
        x_tile = tl.load(x_row + channel[None, :], mask=(at < rows)[:, None] & inside[None, :], other=0.0)
        a_at = a + ranks.to(tl.int64)[None, :] * inputs + channel[:, None]
        a_tile = tl.load(a_at, mask=inside[:, None] & (ranks < rank)[None, :], other=0.0)  # [C, R]
        small = tl.dot(x_tile, a_tile, small, input_precision="ieee")
    narrow = small.to(x.dtype.element_ty)
    y_row = y + at.to(tl.int64)[:, None] * outputs
    for first in range(start, stop, BLOCK_C):
        channel = first + columns
        inside = channel < outputs
        b_at = b + channel.to(tl.int64)[None, :] * rank + ranks[:, None]
        b_tile = tl.load(b_at, mask=inside[None, :] & (ranks < rank)[:, None], other=0.0)  # [R, C]
        here = mine[:, None] & inside[None, :]
        before = tl.load(y_row + channel[None, :], mask=here, other=0.0).to(tl.float32)
        after = tl.dot(narrow, b_tile, before, input_precision="ieee")
        tl.store(y_row + channel[None, :], after.to(y.dtype.element_ty), mask=here)


@triton.jit
def low_rank_kernel(
    y, x, a, b, slots, rows, inputs, outputs, rank, share, count,
    HAS_SLOTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """y += (x Aᵀ) Bᵀ for a tile of rows and `share` output channels; x [M, I], a [R, I], b [O, R], y [M, O].

    With HAS_SLOTS a is [L, R, I] and b [L, O, R]: the tile is computed for every slot that one of its rows has, and
    each row is written once, with the bits that its slot alone would give.
    """
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.program_id(1) * share
    stop = tl.minimum(start + share, outputs)
    if HAS_SLOTS:
        of_row = tl.load(slots + at, mask=at < rows, other=-1)
        for slot in range(0, count):
            mine = of_row == slot
            if tl.max(mine.to(tl.int32), 0) > 0:
                skip = tl.cast(slot, tl.int64) * rank
                add_to_tile(
                    y, x, a + skip * inputs, b + skip * outputs, at, mine, start, stop, rows, inputs, outputs, rank,
                    BLOCK_M, BLOCK_C, BLOCK_R,
                )  # fmt: skip
    else:
        add_to_tile(
            y, x, a, b, at, at < rows, start, stop, rows, inputs, outputs, rank, BLOCK_M, BLOCK_C, BLOCK_R
        )  # fmt: skip


def add_low_rank(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> Tensor:
    """low_rank.add_low_rank() by low_rank_kernel; see there for shapes."""
    rank, inputs = a.shape[-2:]
    outputs = b.shape[-2]
    rows = x.shape[:-1].numel()
    if rows and outputs and rank:
        tiles = triton.cdiv(rows, ROWS)
        shares = min(triton.cdiv(outputs, CHANNELS), triton.cdiv(ENOUGH_PROGRAMS, tiles))
        share = triton.cdiv(triton.cdiv(outputs, shares), CHANNELS) * CHANNELS
        block = max(16, triton.next_power_of_2(rank))
        low_rank_kernel[(tiles, triton.cdiv(outputs, share))](
            y, x, a, b, y if slots is None else slots, rows, inputs, outputs, rank, share,
            0 if slots is None else len(a),
            HAS_SLOTS=slots is not None, BLOCK_M=ROWS, BLOCK_C=CHANNELS,
            BLOCK_R=block, num_warps=warps(block), num_stages=3, enable_fp_fusion=True,
        )  # fmt: skip
    return y
