"""Triton: the three sums of drift in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# 16 tokens a program leave thousands of programs on a video's tokens and tens of thousands of values for each partial
# sum; 256 channels a turn keep both tiles in registers.
TOKENS, CHANNELS = 16, 256


@triton.jit
def drift_kernel(
    a, b, mask, parts, a_b, a_s, b_b, b_s, m_b, m_s, tokens, channels,
    HAS_MASK: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Σ|a - b|, Σ|b| and the number of values of a tile of tokens, into parts [B, tiles, 3]."""
    tile = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    rows = (tile * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    counted = rows < tokens
    if HAS_MASK:
        counted = counted & (tl.load(mask + batch * m_b + rows * m_s, mask=counted, other=0) != 0)
    moved = tl.zeros([BLOCK_S, BLOCK_C], dtype=tl.float32)
    size = tl.zeros([BLOCK_S, BLOCK_C], dtype=tl.float32)
    for first in range(0, channels, BLOCK_C):
        columns = first + tl.arange(0, BLOCK_C)
        here = counted[:, None] & (columns < channels)[None, :]
        a_tile = tl.load(a + batch * a_b + rows[:, None] * a_s + columns[None, :], mask=here, other=0.0).to(tl.float32)
        b_tile = tl.load(b + batch * b_b + rows[:, None] * b_s + columns[None, :], mask=here, other=0.0).to(tl.float32)
        moved += tl.abs(a_tile - b_tile)
        size += tl.abs(b_tile)
    part = parts + (batch * tl.num_programs(0) + tile) * 3
    tl.store(part, tl.sum(tl.sum(moved, 1), 0))
    tl.store(part + 1, tl.sum(tl.sum(size, 1), 0))
    tl.store(part + 2, tl.sum(counted.to(tl.float32), 0) * channels)


def drift(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """drift.drift() by drift_kernel; see there for shapes. The order of the sums does not change between calls."""
    batch, tokens, channels = a.shape
    tiles = triton.cdiv(tokens, TOKENS)
    if not a.numel():
        return torch.zeros((batch, 3), device=a.device)
    parts = torch.empty((batch, tiles, 3), dtype=torch.float32, device=a.device)
    drift_kernel[(tiles, batch)](
        a, b, a if mask is None else mask, parts, *a.stride()[:2], *b.stride()[:2],
        *((0, 0) if mask is None else mask.stride()), tokens, channels,
        HAS_MASK=mask is not None, BLOCK_S=TOKENS, BLOCK_C=CHANNELS, num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return parts.sum(dim=1)
