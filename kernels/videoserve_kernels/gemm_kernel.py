"""Triton: products of 8-bit matrices with their scales applied on the way."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.codes import Codes
from videoserve_kernels.triton_gate import capability


class Tiles(NamedTuple):
    """Rows, columns and depth of one tile, warps of one program, tiles in flight."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


def tiles(rows: int, block: int, sm: int) -> Tiles:
    """The configuration for `rows` tokens with `block` channels a scale on a card of compute capability `sm`.

    One byte a value: 128 × 128 × 128 takes 32 KiB a stage, so three stages stay under the 99 KiB of sm_89 and sm_120,
    and four under the 227 KiB of sm_90 with room for the output. A decode step has few rows: a lower tile wastes less.
    float8 holds the product of a group beside the sum, and except on sm_90 both operands too, in registers: 64 rows.
    A scale for 32 channels makes a tile 32 deep: a quarter of the bytes a stage, so more stages in flight.
    """
    tallest = 64 if block and sm != 90 else 128
    height = min(128 if rows > 64 else 64 if rows > 16 else 16, tallest)
    stages = 6 if block == 32 else 4 if sm == 90 else 3
    return Tiles(height, 128, block or 128, 8 if height == tallest else 4, stages)


@triton.jit
def tile_of(rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """Row and column tile of this program: GROUP tiles of rows share their columns, which then stay in L2."""
    high, wide = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    group = tl.program_id(0) // (GROUP * wide)
    size = tl.minimum(high - group * GROUP, GROUP)
    inside = tl.program_id(0) % (GROUP * wide)
    return group * GROUP + inside % size, inside // size


@triton.jit
def store_tile(out, bias, sums, row, column, rows, columns, HAS_BIAS: tl.constexpr):
    """Writes sums + bias where the tile is inside the matrix."""
    if HAS_BIAS:
        sums += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    here = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], sums.to(out.dtype.element_ty), mask=here)


@triton.jit
def scaled_linear_kernel(
    x, x_scales, weight, weight_scales, bias, out, rows, columns, depth,
    SCALED: tl.constexpr, HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out = (Σ_k x w) · s_x[m] · s_w[n] + bias, summed in int32; or with SCALED, a scale for BLOCK_K channels,
    out = Σ_g s_x[m, g] · s_w[n / BLOCK_K, g] · Σ_{k in g} x w + bias over groups g.

    x [M, K], weight [N, K], out [M, N], scales and bias as in the door.
    """
    high, wide = tile_of(rows, columns, BLOCK_M, BLOCK_N, GROUP)
    row = high * BLOCK_M + tl.arange(0, BLOCK_M)
    column = wide * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + row.to(tl.int64)[:, None] * depth + inner[None, :]
    w_at = weight + column.to(tl.int64)[None, :] * depth + inner[:, None]
    groups = tl.cdiv(depth, BLOCK_K)
    sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32 if SCALED else tl.int32)
    for group in range(0, groups):
        left = inner < depth - group * BLOCK_K
        x_tile = tl.load(x_at + group * BLOCK_K, mask=(row < rows)[:, None] & left[None, :], other=0.0)
        w_tile = tl.load(w_at + group * BLOCK_K, mask=(column < columns)[None, :] & left[:, None], other=0.0)
        if SCALED:
            x_scale = tl.load(x_scales + row.to(tl.int64) * groups + group, mask=row < rows, other=0.0)
            # Each group is summed from zero: the cards' own float8 sums keep few bits over a long depth.
            product = tl.dot(x_tile, w_tile)
            if BLOCK_N == BLOCK_K:
                w_scale = tl.load(weight_scales + wide.to(tl.int64) * groups + group)
                sums += product * (x_scale * w_scale)[:, None]
            else:
                w_scale_at = weight_scales + (column // BLOCK_K).to(tl.int64) * groups + group
                w_scales = tl.load(w_scale_at, mask=column < columns, other=0.0)
                sums += product * x_scale[:, None] * w_scales[None, :]
        else:
            sums = tl.dot(x_tile, w_tile, sums)
    if SCALED:
        store_tile(out, bias, sums, row, column, rows, columns, HAS_BIAS)
    else:
        of_row = tl.load(x_scales + row, mask=row < rows, other=0.0)
        of_column = tl.load(weight_scales + column, mask=column < columns, other=0.0)
        scaled = sums.to(tl.float32) * of_row[:, None] * of_column[None, :]
        store_tile(out, bias, scaled, row, column, rows, columns, HAS_BIAS)


def scaled_linear(
    x: Codes, weight: Codes, *, bias: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    """gemm.scaled_linear() by scaled_linear_kernel, one program a tile, in an order that finds its columns in L2."""
    (rows, depth), columns = x.values.shape, weight.values.shape[0]
    out = torch.empty((rows, columns), dtype=dtype, device=x.values.device)
    if out.numel():
        size = tiles(rows, x.block, capability(x.values))
        scaled_linear_kernel[(triton.cdiv(rows, size.rows) * triton.cdiv(columns, size.columns),)](
            *x[:2], *weight[:2], x.values if bias is None else bias, out, rows, columns, depth,
            SCALED=x.block > 0, HAS_BIAS=bias is not None,
            BLOCK_M=size.rows, BLOCK_N=size.columns, BLOCK_K=size.depth, GROUP=8,
            num_warps=size.warps, num_stages=size.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return out
