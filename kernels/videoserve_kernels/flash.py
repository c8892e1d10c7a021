"""Triton flash attention that also returns the log-sum-exp: what a ring of ranks needs to merge its parts."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.masks import MASK_BLOCK, blocks_in_turn
from videoserve_kernels.triton_gate import capability

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


class Tiles(NamedTuple):
    """Queries and keys of one tile, warps of one program, tiles of keys in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles(head_dim: int, dtype: torch.dtype, sm: int) -> Tiles:
    """The configuration for a card of compute capability `sm`.

    Shared memory holds one tile of queries and `stages` tiles of keys and of values: 227 KiB a block on sm_90, 99 KiB
    on sm_89 and sm_120, where D = 128 therefore takes 64 keys in two stages. float32 is multiplied exactly, by
    ordinary instructions, whose operands live in registers: small tiles, and more threads for 128 channels.
    """
    if dtype == torch.float32:
        return Tiles(32, 16, 8, 1) if head_dim == 128 else Tiles(32, 32, 4, 1)
    if sm == 90:
        return Tiles(128, 64, 8, 3)
    return Tiles(128, 64, 8, 2)


@triton.jit
def take_in(acc, top, total, scores, v_tile):
    """One tile of keys into the running sum `acc`, maximum `top` and total; scores are in powers of two."""
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen no key yet keeps -inf; -inf - -inf would be NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision="ieee")
    return acc, new_top, total


@triton.jit
def attend_keys(
    acc, top, total, q, k, v, bias, order, k_s, v_s, rows, start, stop, keys, ahead, behind, scale,
    HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, AHEAD: tl.constexpr, BEHIND: tl.constexpr, MASKED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes in keys start..stop-1.

    With AHEAD row r sees keys up to r + ahead, with BEHIND those after r + behind. With HAS_BLOCKS start and stop
    count in the blocks of `order` instead.
    """
    channels = tl.arange(0, HEAD_DIM)
    columns = tl.arange(0, BLOCK_K)
    for turn in range(start, stop, BLOCK_K):
        first = turn
        if HAS_BLOCKS:
            first = tl.load(order + turn // BLOCK) * BLOCK + turn % BLOCK
        # Addresses in 64 bits, comparisons in 32: half the registers.
        at = first + columns
        inside = at < keys
        k_at = k + at.to(tl.int64)[None, :] * k_s + channels[:, None]
        v_at = v + at.to(tl.int64)[:, None] * v_s + channels[None, :]
        if MASKED:
            k_tile = tl.load(k_at, mask=inside[None, :], other=0.0)  # [D, K]
            v_tile = tl.load(v_at, mask=inside[:, None], other=0.0)  # [K, D]
        else:
            k_tile = tl.load(k_at)
            v_tile = tl.load(v_at)
        scores = tl.dot(q, k_tile, input_precision="ieee") * scale  # [Q, K]
        if HAS_BIAS:
            scores += tl.load(bias + at, mask=inside, other=0.0)[None, :] * LOG2_E
        if MASKED:
            seen = inside[None, :]
            if AHEAD:
                seen = seen & (at[None, :] <= rows[:, None] + ahead)
            if BEHIND:
                seen = seen & (at[None, :] > rows[:, None] + behind)
            scores = tl.where(seen, scores, float("-inf"))
        acc, top, total = take_in(acc, top, total, scores, v_tile)
    return acc, top, total


@triton.jit
def flash_kernel(
    q, k, v, bias, lengths, sinks, order, counts, out, lse,
    q_b, q_s, q_n, k_b, k_s, k_n, v_b, v_s, v_n, o_b, o_s, o_n, bias_b, order_b, order_n, counts_b, counts_n,
    queries, keys, heads, group, window, scale,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    """out = Σ 2^(s - m) v / Σ 2^(s - m), lse = (m + log2 Σ 2^(s - m)) · ln 2, scores s = (q · k / √D + bias) · log2 e;
    a sink is one more s below, without a v.

    One program a tile of queries of one head; tiles of keys that no query of the tile sees are not read.
    """
    tile = tl.program_id(0)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    channels = tl.arange(0, HEAD_DIM)
    # Row r stands at key r + offset: the last query at the last key, also when there are fewer queries than keys.
    offset = keys - queries
    ahead = offset
    behind = offset - window
    if HAS_WINDOW and not CAUSAL:
        ahead = offset + window - 1
    known = keys
    if HAS_LENGTHS:
        known = tl.load(lengths + batch).to(tl.int32)
    # Every query of the tile sees the keys before `whole`, none those from `stop` on.
    stop = known
    whole = known
    if CAUSAL or HAS_WINDOW:
        stop = tl.maximum(tl.minimum(known, (tile + 1) * BLOCK_Q + ahead), 0)
        whole = tl.maximum(tl.minimum(known, tile * BLOCK_Q + ahead + 1), 0)
    whole = whole // BLOCK_K * BLOCK_K
    if HAS_WINDOW:
        # None sees the keys before this one. Windows are short: no loop of their own for keys that all see.
        whole = tl.maximum(tile * BLOCK_Q + behind + 1, 0) // BLOCK_K * BLOCK_K
    if HAS_BLOCKS:
        row = tile * BLOCK_Q // BLOCK
        blocks = tl.cdiv(keys, BLOCK)
        order += batch * order_b + head * order_n + row * blocks
        whole = 0
        stop = tl.load(counts + batch * counts_b + head * counts_n + row) * BLOCK

    q_at = q + batch * q_b + head * q_n + rows.to(tl.int64)[:, None] * q_s + channels[None, :]
    q_tile = tl.load(q_at, mask=rows[:, None] < queries, other=0.0)
    k += batch * k_b + (head // group) * k_n
    v += batch * v_b + (head // group) * v_n
    bias += batch * bias_b
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], dtype=tl.float32)
    top = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_Q], dtype=tl.float32)
    if HAS_SINKS:
        top = tl.zeros([BLOCK_Q], dtype=tl.float32) + tl.load(sinks + head) * LOG2_E
        total += 1.0
    if not (HAS_BLOCKS or HAS_WINDOW):
        acc, top, total = attend_keys(
            acc, top, total, q_tile, k, v, bias, order, k_s, v_s, rows, 0, whole, known, ahead, behind, scale,
            HEAD_DIM, BLOCK_K, False, False, False, HAS_BIAS, False, BLOCK,
        )  # fmt: skip
    acc, top, total = attend_keys(
        acc, top, total, q_tile, k, v, bias, order, k_s, v_s, rows, whole, stop, known, ahead, behind, scale,
        HEAD_DIM, BLOCK_K, CAUSAL or HAS_WINDOW, HAS_WINDOW, True, HAS_BIAS, HAS_BLOCKS, BLOCK,
    )  # fmt: skip

    # By the total and not by the maximum, which passes over NaN: a row of NaN has seen keys.
    unseen = total == 0
    total = tl.where(unseen, 1.0, total)
    here = rows < queries
    out_at = out + batch * o_b + head * o_n + rows.to(tl.int64)[:, None] * o_s + channels[None, :]
    tl.store(out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=here[:, None])
    if HAS_LSE:
        sums = tl.where(unseen, float("-inf"), (top + tl.log2(total)) * LN_2)
        tl.store(lse + (batch * queries + rows) * heads + head, sums, mask=here)


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    block_mask: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """attend() by flash_kernel; see there for shapes. Any strides with contiguous channels; D 32, 64 or 128."""
    batch, queries, heads, head_dim = q.shape
    keys = k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    size = tiles(head_dim, q.dtype, capability(q))
    bias = None if key_bias is None else key_bias.float().contiguous()
    lengths = None if key_lengths is None else key_lengths.contiguous()
    beside = None if sinks is None else sinks.float().contiguous()
    order, counts = (q, q) if block_mask is None else blocks_in_turn(block_mask)
    if out.numel():
        flash_kernel[(triton.cdiv(queries, size.queries), batch * heads)](
            q, k, v, q if bias is None else bias, q if lengths is None else lengths, q if beside is None else beside,
            order, counts, out, q if lse is None else lse,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], 0 if bias is None else bias.stride(0),
            *per_head(order), *per_head(counts),
            queries, keys, heads, heads // k.shape[2], window or 0, LOG2_E.value / head_dim**0.5,
            HEAD_DIM=head_dim, BLOCK_Q=size.queries, BLOCK_K=size.keys, CAUSAL=causal, HAS_WINDOW=window is not None,
            HAS_BIAS=bias is not None, HAS_LENGTHS=lengths is not None, HAS_SINKS=sinks is not None,
            HAS_BLOCKS=block_mask is not None, BLOCK=MASK_BLOCK, HAS_LSE=return_lse,
            num_warps=size.warps, num_stages=size.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return out if lse is None else (out, lse)


def per_head(tensor: Tensor) -> tuple[int, int]:
    """Strides of the first two axes, 0 for one that every row or head shares."""
    return tensor.stride(0) if tensor.shape[0] > 1 else 0, tensor.stride(1) if tensor.shape[1] > 1 else 0
