"""Triton flash attention that also returns the log-sum-exp: what a ring of ranks needs to merge its parts."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

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
def attend_keys(
    acc, top, total, q, k, v, bias, k_s, v_s, rows, start, stop, keys, offset, scale,
    HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Takes keys start..stop-1 into the running sum `acc`, maximum `top` and total; scores are in powers of two."""
    channels = tl.arange(0, HEAD_DIM)
    columns = tl.arange(0, BLOCK_K)
    for first in range(start, stop, BLOCK_K):
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
            if CAUSAL:
                seen = seen & (at[None, :] <= rows[:, None] + offset)
            scores = tl.where(seen, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen no key yet keeps -inf; -inf - -inf would be NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision="ieee")
        top = new_top
    return acc, top, total


@triton.jit
def flash_kernel(
    q, k, v, bias, lengths, out, lse,
    q_b, q_s, q_n, k_b, k_s, k_n, v_b, v_s, v_n, o_b, o_s, o_n, bias_b,
    queries, keys, heads, group, scale,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_LENGTHS: tl.constexpr, HAS_LSE: tl.constexpr,
):  # fmt: skip
    """out = Σ 2^(s - m) v / Σ 2^(s - m), lse = (m + log2 Σ 2^(s - m)) · ln 2, scores s = (q · k / √D + bias) · log2 e.

    One program a tile of queries of one head; keys that no query of the tile sees are not read.
    """
    tile = tl.program_id(0)
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    channels = tl.arange(0, HEAD_DIM)
    # The last query sees the last key, also when there are fewer queries than keys.
    offset = keys - queries
    known = keys
    if HAS_LENGTHS:
        known = tl.load(lengths + batch).to(tl.int32)
    stop = known
    whole = known
    if CAUSAL:
        stop = tl.maximum(tl.minimum(known, (tile + 1) * BLOCK_Q + offset), 0)
        whole = tl.maximum(tl.minimum(known, tile * BLOCK_Q + offset + 1), 0)
    whole = whole // BLOCK_K * BLOCK_K

    q_at = q + batch * q_b + head * q_n + rows.to(tl.int64)[:, None] * q_s + channels[None, :]
    q_tile = tl.load(q_at, mask=rows[:, None] < queries, other=0.0)
    k += batch * k_b + (head // group) * k_n
    v += batch * v_b + (head // group) * v_n
    bias += batch * bias_b
    acc = tl.zeros([BLOCK_Q, HEAD_DIM], dtype=tl.float32)
    top = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_Q], dtype=tl.float32)
    acc, top, total = attend_keys(
        acc, top, total, q_tile, k, v, bias, k_s, v_s, rows, 0, whole, known, offset, scale,
        HEAD_DIM, BLOCK_K, CAUSAL, False, HAS_BIAS,
    )  # fmt: skip
    acc, top, total = attend_keys(
        acc, top, total, q_tile, k, v, bias, k_s, v_s, rows, whole, stop, known, offset, scale,
        HEAD_DIM, BLOCK_K, CAUSAL, True, HAS_BIAS,
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
    if out.numel():
        flash_kernel[(triton.cdiv(queries, size.queries), batch * heads)](
            q, k, v, q if bias is None else bias, q if lengths is None else lengths, out,
            q if lse is None else lse,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], 0 if bias is None else bias.stride(0),
            queries, keys, heads, heads // k.shape[2], LOG2_E.value / head_dim**0.5,
            HEAD_DIM=head_dim, BLOCK_Q=size.queries, BLOCK_K=size.keys, CAUSAL=causal,
            HAS_BIAS=bias is not None, HAS_LENGTHS=lengths is not None, HAS_LSE=return_lse,
            num_warps=size.warps, num_stages=size.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return out if lse is None else (out, lse)
