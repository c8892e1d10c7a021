"""Triton: attention of each token over entries that it names, keys that are values too, in parts put together."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.flash import LN_2, LOG2_E, take_in
from videoserve_kernels.paged_kernel import join_kernel, tiles

# Named entries of one program: those far off keep a card busy when there are few tokens.
PART = 512


@triton.jit
def sparse_kernel(
    q, pool, at, sinks, out, lse,
    q_t, q_n, pool_l, at_t, tokens, heads, channels, named, scale,
    PART: tl.constexpr, HAS_SINKS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Flash attention of one token's heads over the entries pool[at] of one part, as in flash.py; -1 is none.

    out [parts, T, N, D], lse [parts, T, N].
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mine = head < heads
    channel = tl.arange(0, BLOCK_D)
    inside = channel < channels
    columns = tl.arange(0, BLOCK_K)
    q_at = q + token * q_t + head.to(tl.int64)[:, None] * q_n + channel[None, :]
    q_tile = tl.load(q_at, mask=mine[:, None] & inside[None, :], other=0.0)
    at += token * at_t
    acc = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_N], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    if HAS_SINKS:
        top = tl.load(sinks + head, mask=mine, other=0.0) * LOG2_E
        total += 1.0
    start = part * PART
    stop = tl.minimum(named, start + PART)
    for first in range(start, stop, BLOCK_K):
        place = tl.load(at + first + columns, mask=first + columns < stop, other=-1).to(tl.int64)
        seen = place >= 0
        tile_at = pool + place[:, None] * pool_l + channel[None, :]
        tile = tl.load(tile_at, mask=seen[:, None] & inside[None, :], other=0.0)  # [K, D]
        scores = tl.dot(q_tile, tl.trans(tile), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        acc, top, total = take_in(acc, top, total, scores, tile)
    unseen = total == 0
    total = tl.where(unseen, 1.0, total)
    line = (part * tokens + token) * heads + head
    out_at = out + line[:, None] * channels + channel[None, :]
    tl.store(out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None] & inside[None, :])
    tl.store(lse + line, tl.where(unseen, float("-inf"), (top + tl.log2(total)) * LN_2), mask=mine)


def sparse_attention(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> Tensor:
    """sparse.sparse_attention() by sparse_kernel, and join_kernel where there are entries far off.

    What is near is one part, so that where others begin does not depend on how much of it a batch has.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not out.numel():
        return out
    tokens, heads, channels = q.shape
    parts = 0 if far is None or far_at is None else triton.cdiv(far_at.shape[1], PART)
    joined = parts > 0
    pieces = torch.empty((1 + parts, *q.shape), dtype=torch.float32, device=q.device) if joined else out[None]
    sums = torch.empty((1 + parts, tokens, heads), dtype=torch.float32, device=q.device)
    attend_part(q, near, at, sinks, pieces, sums, 1, max(triton.next_power_of_2(at.shape[1]), PART))
    if joined:
        assert far is not None
        assert far_at is not None
        attend_part(q, far, far_at, None, pieces[1:], sums[1:], parts, PART)
        join_kernel[(tokens * heads,)](
            pieces, sums, out, torch.empty_like(sums[0]), tokens * heads, channels, 1 + parts,
            BLOCK_P=triton.next_power_of_2(1 + parts), BLOCK_D=max(triton.next_power_of_2(channels), 16), num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
    return out


def attend_part(
    q: Tensor, pool: Tensor, at: Tensor, sinks: Tensor | None, pieces: Tensor, sums: Tensor, parts: int, part: int
) -> None:
    """All parts of one pool."""
    tokens, heads, channels = q.shape
    size = tiles(heads, channels)
    sparse_kernel[(tokens, triton.cdiv(heads, size.heads), parts)](
        q, pool, at, q if sinks is None else sinks.float().contiguous(), pieces, sums,
        *q.stride()[:2], pool.stride(0), at.stride(0), tokens, heads, channels, at.shape[1],
        LOG2_E.value / channels**0.5, PART=part, HAS_SINKS=sinks is not None, BLOCK_N=size.heads, BLOCK_K=size.keys,
        BLOCK_D=max(triton.next_power_of_2(channels), 16), num_warps=size.warps, num_stages=size.stages,
        enable_fp_fusion=True,
    )  # fmt: skip
