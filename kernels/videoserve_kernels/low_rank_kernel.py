"""Triton: the low-rank addition in one pass over its input and its output."""

import triton
import triton.language as tl
from torch import Tensor

# 64 rows by up to 128 ranks are 64 numbers a thread of four warps; 64 channels a turn suit the cards' products.
ROWS, CHANNELS = 64, 64
# Programs that keep a large card busy: few rows, as in decoding, share out the output channels instead.
ENOUGH_PROGRAMS = 256


@triton.jit
def low_rank_kernel(
    y, x, a, b, rows, inputs, outputs, rank, share,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """y += (x Aᵀ) Bᵀ for a tile of rows and `share` output channels; x [M, I], a [R, I], b [O, R], y [M, O]."""
    at = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tl.program_id(1) * share
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
    for first in range(start, tl.minimum(start + share, outputs), BLOCK_C):
        channel = first + columns
        inside = channel < outputs
        b_at = b + channel.to(tl.int64)[None, :] * rank + ranks[:, None]
        b_tile = tl.load(b_at, mask=inside[None, :] & (ranks < rank)[:, None], other=0.0)  # [R, C]
        here = (at < rows)[:, None] & inside[None, :]
        before = tl.load(y_row + channel[None, :], mask=here, other=0.0).to(tl.float32)
        after = tl.dot(narrow, b_tile, before, input_precision="ieee")
        tl.store(y_row + channel[None, :], after.to(y.dtype.element_ty), mask=here)


def add_low_rank(y: Tensor, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """low_rank.add_low_rank() by low_rank_kernel; see there for shapes."""
    rank, inputs = a.shape
    outputs = b.shape[0]
    rows = x.shape[:-1].numel()
    if rows and outputs and rank:
        tiles = triton.cdiv(rows, ROWS)
        shares = min(triton.cdiv(outputs, CHANNELS), triton.cdiv(ENOUGH_PROGRAMS, tiles))
        share = triton.cdiv(triton.cdiv(outputs, shares), CHANNELS) * CHANNELS
        low_rank_kernel[(tiles, triton.cdiv(outputs, share))](
            y, x, a, b, rows, inputs, outputs, rank, share,
            BLOCK_M=ROWS, BLOCK_C=CHANNELS, BLOCK_R=max(16, triton.next_power_of_2(rank)),
            num_warps=4, num_stages=3, enable_fp_fusion=True,
        )  # fmt: skip
    return y
