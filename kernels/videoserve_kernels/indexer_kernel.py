"""Triton: the scores by which tokens choose among compressed entries, of all tokens of a batch in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Entries of one program.
ENTRIES = 64


@triton.jit
def score_kernel(
    q, weights, keys, places, rows, seen, scores, q_t, q_h, w_t, k_l, p_b, heads, channels, entries,
    BLOCK_H: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """scores[t, e] = Σ_h w_h · relu(q_h · k_e) of one token and some entries, -inf from `seen` on. scores [T, E]."""
    token = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    there = entry < tl.load(seen + token)
    row = tl.load(rows + token).to(tl.int64)
    place = tl.load(places + row * p_b + entry, mask=there, other=0).to(tl.int64)
    head = tl.arange(0, BLOCK_H)
    channel = tl.arange(0, BLOCK_D)
    mine = head < heads
    inside = channel < channels
    q_at = q + token * q_t + head[:, None] * q_h + channel[None, :]
    q_tile = tl.load(q_at, mask=mine[:, None] & inside[None, :], other=0.0)
    k_at = keys + place[None, :] * k_l + channel[:, None]
    k_tile = tl.load(k_at, mask=there[None, :] & inside[:, None], other=0.0)  # [D, E]
    products = tl.dot(q_tile, k_tile, input_precision="ieee")  # [H, E]
    # So that what is no number stays none.
    products = tl.where(products < 0, 0.0, products)
    shares = tl.load(weights + token * w_t + head, mask=mine, other=0.0)
    total = tl.sum(products * shares[:, None], 0)
    at = scores + token * entries + entry
    tl.store(at, tl.where(there, total, float("-inf")), mask=entry < entries)


def top_entries(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> Tensor:
    """indexer.top_entries() by score_kernel and torch's own choice of the largest."""
    tokens, heads, channels = q.shape
    entries = places.shape[1]
    chosen = torch.full((tokens, count), -1, dtype=torch.int64, device=q.device)
    if not (tokens and entries):
        return chosen
    scores = torch.empty((tokens, entries), dtype=torch.float32, device=q.device)
    score_kernel[(tokens, triton.cdiv(entries, ENTRIES))](
        q, weights, keys, places, rows, seen, scores, *q.stride()[:2], weights.stride(0), keys.stride(0),
        places.stride(0), heads, channels, entries, BLOCK_H=max(triton.next_power_of_2(heads), 16), BLOCK_E=ENTRIES,
        BLOCK_D=max(triton.next_power_of_2(channels), 16), num_warps=4, num_stages=1, enable_fp_fusion=True,
    )  # fmt: skip
    best = scores.topk(min(count, entries), sorted=False).indices
    chosen[:, : best.shape[1]] = best.masked_fill(best >= seen[:, None], -1)
    return chosen
