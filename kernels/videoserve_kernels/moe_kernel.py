"""Triton: the products of many experts in one launch, over tokens that are sorted by expert."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiles(NamedTuple):
    """Picks, columns and depth of one tile, warps of one program, tiles in flight."""

    picks: int
    columns: int
    depth: int
    warps: int
    stages: int


def tiles(picks: int, experts: int) -> Tiles:
    """The configuration for so many picks: of few an expert gets one or two, and reading its weights is what counts.

    Two products share the first kernel's registers: 64 columns of each.
    """
    if picks <= 16 * experts:
        return Tiles(16, 64, 64, 4, 3)
    return Tiles(64, 64, 64, 8, 3)


class Schedule(NamedTuple):
    """Picks in `order` of their expert; tile i has those from firsts[i] on, and experts[i], E past the last tile.

    `ends` [E] are where the picks of each expert end.
    """

    order: Tensor
    ends: Tensor
    experts: Tensor
    firsts: Tensor


def schedule(picks: Tensor, experts: int, size: int) -> Schedule:
    """Tiles of `size` picks [P] of one expert each, found on the device: nobody waits for a count."""
    counts = torch.zeros(experts, dtype=torch.int64, device=picks.device)
    counts.index_add_(0, picks, torch.ones_like(picks))
    ends = counts.cumsum(0)
    of_expert = (counts + size - 1) // size
    tile_ends = of_expert.cumsum(0)
    # As many tiles as there can be.
    tile = torch.arange(len(picks) // size + min(experts, len(picks)), device=picks.device)
    expert = torch.searchsorted(tile_ends, tile, right=True)
    within = expert.clamp(max=experts - 1)
    firsts = (ends - counts)[within] + (tile - (tile_ends - of_expert)[within]) * size
    return Schedule(picks.argsort(stable=True), ends, expert, firsts)


@triton.jit
def gate_up_kernel(
    x, gate_up, grown, order, ends, experts, firsts, x_t, w_e, w_n, count, kept, channels, hidden, limit,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """grown = silu(min(gate, limit)) · clamp(up, ±limit) of one tile of picks and hidden channels.

    `count` experts; a token has `kept` picks. grown [P, I] in the order of the tiles.
    """
    expert = tl.load(experts + tl.program_id(0))
    if expert < count:
        row = tl.load(firsts + tl.program_id(0)) + tl.arange(0, BLOCK_M)
        mine = row < tl.load(ends + expert)
        token = tl.load(order + row, mask=mine, other=0) // kept
        column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = column < hidden
        depth = tl.arange(0, BLOCK_K)
        x_at = x + token[:, None] * x_t + depth[None, :]
        gate_at = gate_up + expert * w_e + column.to(tl.int64)[None, :] * w_n + depth[:, None]
        up_at = gate_up + expert * w_e + (hidden + column).to(tl.int64)[None, :] * w_n + depth[:, None]
        gate = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for first in range(0, channels, BLOCK_K):
            deep = first + depth < channels
            x_tile = tl.load(x_at + first, mask=mine[:, None] & deep[None, :], other=0.0)
            weights = inside[None, :] & deep[:, None]
            gate = tl.dot(x_tile, tl.load(gate_at + first, mask=weights, other=0.0), gate, input_precision="ieee")
            up = tl.dot(x_tile, tl.load(up_at + first, mask=weights, other=0.0), up, input_precision="ieee")
        # Rounded as one product after the other rounds them; what is no number stays none.
        gate = gate.to(grown.dtype.element_ty).to(tl.float32)
        up = up.to(grown.dtype.element_ty).to(tl.float32)
        gate = tl.where(gate > limit, limit, gate)
        up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
        result = (gate * tl.sigmoid(gate)).to(grown.dtype.element_ty).to(tl.float32) * up
        at = grown + row.to(tl.int64)[:, None] * hidden + column[None, :]
        tl.store(at, result.to(grown.dtype.element_ty), mask=mine[:, None] & inside[None, :])


@triton.jit
def down_kernel(
    grown, down, made, order, ends, experts, firsts, w_e, w_n, count, channels, hidden,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """made[pick] = down_e grown, of one tile of picks and channels; made [P, C] in the order of the tokens."""
    expert = tl.load(experts + tl.program_id(0))
    if expert < count:
        row = tl.load(firsts + tl.program_id(0)) + tl.arange(0, BLOCK_M)
        mine = row < tl.load(ends + expert)
        pick = tl.load(order + row, mask=mine, other=0)
        column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = column < channels
        depth = tl.arange(0, BLOCK_K)
        grown_at = grown + row.to(tl.int64)[:, None] * hidden + depth[None, :]
        weight_at = down + expert * w_e + column.to(tl.int64)[None, :] * w_n + depth[:, None]
        acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for first in range(0, hidden, BLOCK_K):
            deep = first + depth < hidden
            tile = tl.load(grown_at + first, mask=mine[:, None] & deep[None, :], other=0.0)
            weights = tl.load(weight_at + first, mask=inside[None, :] & deep[:, None], other=0.0)
            acc = tl.dot(tile, weights, acc, input_precision="ieee")
        at = made + pick[:, None] * channels + column[None, :]
        tl.store(at, acc.to(made.dtype.element_ty), mask=mine[:, None] & inside[None, :])


def run_experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, limit: float) -> Tensor:
    """moe.run_experts() by gate_up_kernel and down_kernel, and a weighted sum over each token's own."""
    tokens, kept = chosen.shape
    experts, channels, hidden = down.shape
    made = torch.empty((tokens, kept, channels), dtype=x.dtype, device=x.device)
    if made.numel():
        size = tiles(tokens * kept, experts)
        plan = schedule(chosen.flatten(), experts, size.picks)
        grown = torch.empty((tokens * kept, hidden), dtype=x.dtype, device=x.device)
        blocks = {"BLOCK_M": size.picks, "BLOCK_N": size.columns, "BLOCK_K": size.depth}
        options = {"num_warps": size.warps, "num_stages": size.stages, "enable_fp_fusion": True}
        gate_up_kernel[(len(plan.experts), triton.cdiv(hidden, size.columns))](
            x, gate_up, grown, *plan, x.stride(0), *gate_up.stride()[:2], experts, kept, channels, hidden, limit,
            **blocks, **options,
        )  # fmt: skip
        down_kernel[(len(plan.experts), triton.cdiv(channels, size.columns))](
            grown, down, made, *plan, *down.stride()[:2], experts, channels, hidden, **blocks, **options
        )
    return torch.einsum("tk,tkc->tc", weights.to(x.dtype), made)
