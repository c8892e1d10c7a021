"""Triton: attention over a paged cache, in parts that are put together, and writing into the cache."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.flash import LN_2, LOG2_E, take_in
from videoserve_kernels.pages import Pages

# Keys of one program: a long sequence alone keeps a card busy, and where parts begin does not depend on the batch.
PART = 1024


class Tiles(NamedTuple):
    """Query heads and keys of one tile, warps of one program, tiles of keys in flight."""

    heads: int
    keys: int
    warps: int
    stages: int


def tiles(group: int, channels: int) -> Tiles:
    """The configuration for `group` query heads a key head.

    Products of tiles take at least 16 rows. At 512 channels 16 keys and values are 32 KiB in bfloat16: with the
    queries two programs share the 99 KiB of sm_89 and sm_120, and 8 warps hold the sum without spilling.
    """
    if channels > 256:
        return Tiles(16, 16, 8, 2)
    return Tiles(min(max(triton.next_power_of_2(group), 16), 64), 64 if channels <= 128 else 32, 4, 2)


@triton.jit
def paged_kernel(
    q, keys, values, tables, rows, positions, sinks, out, lse,
    q_t, q_n, k_b, k_s, k_n, v_b, v_s, v_n, table_b, tokens, heads, group, channels, window, scale,
    PAGE: tl.constexpr, PART: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Flash attention of one token's heads that share a key head over the positions of one part, as in flash.py.

    out [parts, T, N, D], lse [parts, T, N]; a sink belongs to the first part.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    row = tl.load(rows + token).to(tl.int64)
    position = tl.load(positions + token)
    per_group = tl.cdiv(group, BLOCK_N)
    key_head = (tl.program_id(1) // per_group).to(tl.int64)
    of_group = tl.program_id(1) % per_group * BLOCK_N + tl.arange(0, BLOCK_N)
    mine = of_group < group
    head = key_head * group + of_group
    channel = tl.arange(0, BLOCK_D)
    inside = channel < channels
    columns = tl.arange(0, BLOCK_K)
    q_at = q + token * q_t + head[:, None] * q_n + channel[None, :]
    q_tile = tl.load(q_at, mask=mine[:, None] & inside[None, :], other=0.0)
    keys += key_head * k_n
    values += key_head * v_n
    tables += row * table_b
    start = part * PART
    stop = tl.minimum(position + 1, start + PART)
    if HAS_WINDOW:
        start = tl.maximum(start, tl.maximum(position + 1 - window, 0) // BLOCK_K * BLOCK_K)
    acc = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    top = tl.full([BLOCK_N], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_N], dtype=tl.float32)
    if HAS_SINKS:
        top = tl.where(part == 0, tl.load(sinks + head, mask=mine, other=0.0) * LOG2_E, float("-inf"))
        total += tl.where(part == 0, 1.0, 0.0)
    for first in range(start, stop, BLOCK_K):
        at = first + columns
        seen = at < stop
        if HAS_WINDOW:
            seen = seen & (at > position - window)
        block = tl.load(tables + at // PAGE, mask=seen, other=0).to(tl.int64)
        k_at = keys + block[None, :] * k_b + (at % PAGE).to(tl.int64)[None, :] * k_s + channel[:, None]
        v_at = values + block[:, None] * v_b + (at % PAGE).to(tl.int64)[:, None] * v_s + channel[None, :]
        k_tile = tl.load(k_at, mask=seen[None, :] & inside[:, None], other=0.0)  # [D, K]
        v_tile = tl.load(v_at, mask=seen[:, None] & inside[None, :], other=0.0)  # [K, D]
        scores = tl.dot(q_tile, k_tile, input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        acc, top, total = take_in(acc, top, total, scores, v_tile)
    unseen = total == 0
    total = tl.where(unseen, 1.0, total)
    line = (part * tokens + token) * heads + head
    out_at = out + line[:, None] * channels + channel[None, :]
    tl.store(out_at, (acc / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None] & inside[None, :])
    tl.store(lse + line, tl.where(unseen, float("-inf"), (top + tl.log2(total)) * LN_2), mask=mine)


@triton.jit
def join_kernel(
    parts, sums, out, lse, lines, channels, count, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """out = Σ_p part · e^lse / Σ_p e^lse and lse = log Σ_p e^lse; parts [P, lines, D], sums [P, lines].

    One part alone passes through bit for bit: the others weigh 0.
    """
    line = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK_P)
    channel = tl.arange(0, BLOCK_D)
    here = part < count
    of_part = tl.load(sums + part.to(tl.int64) * lines + line, mask=here, other=float("-inf"))
    top = tl.max(of_part, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp(of_part - base)
    total = tl.sum(weights, 0)
    unseen = total == 0
    weights = weights / tl.where(unseen, 1.0, total)
    at = parts + (part.to(tl.int64) * lines + line)[:, None] * channels + channel[None, :]
    values = tl.load(at, mask=here[:, None] & (channel < channels)[None, :], other=0.0)
    joined = tl.sum(values * weights[:, None], 0)
    tl.store(out + line * channels + channel, joined.to(out.dtype.element_ty), mask=channel < channels)
    tl.store(lse + line, tl.where(unseen, float("-inf"), base + tl.log(tl.where(unseen, 1.0, total))))


def paged_attention(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """paged.paged_attention() by paged_kernel and, for tables of more than one part, join_kernel."""
    tokens, heads, channels = q.shape
    key_heads = pages.keys.shape[2]
    parts = max(triton.cdiv(pages.tables.shape[1] * pages.size, PART), 1)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    if out.numel():
        size = tiles(heads // key_heads, channels)
        block_d = max(triton.next_power_of_2(channels), 16)
        whole = parts == 1
        pieces = out if whole else torch.empty((parts, *q.shape), dtype=torch.float32, device=q.device)
        sums = lse if whole else torch.empty((parts, tokens, heads), dtype=torch.float32, device=q.device)
        per_group = triton.cdiv(heads // key_heads, size.heads)
        paged_kernel[(tokens, key_heads * per_group, parts)](
            q, *pages, rows, positions, q if sinks is None else sinks.float().contiguous(), pieces, sums,
            *q.stride()[:2], *pages.keys.stride()[:3], *pages.values.stride()[:3], pages.tables.stride(0),
            tokens, heads, heads // key_heads, channels, window or 0, LOG2_E.value / channels**0.5,
            PAGE=pages.size, PART=PART, HAS_WINDOW=window is not None, HAS_SINKS=sinks is not None,
            BLOCK_N=size.heads, BLOCK_K=size.keys, BLOCK_D=block_d,
            num_warps=size.warps, num_stages=size.stages, enable_fp_fusion=True,
        )  # fmt: skip
        if not whole:
            join_kernel[(tokens * heads,)](
                pieces, sums, out, lse, tokens * heads, channels, parts,
                BLOCK_P=triton.next_power_of_2(parts), BLOCK_D=block_d, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return (out, lse) if return_lse else out


@triton.jit
def store_kernel(
    k, v, keys, values, tables, rows, positions,
    k_t, k_n, v_t, v_n, keys_b, keys_s, keys_n, values_b, values_s, values_n, table_b, heads, channels,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keys[tables[row, p // P], p % P] = k and the same of v, for one token with all its heads."""
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token)
    if position >= 0:
        row = tl.load(rows + token).to(tl.int64)
        block = tl.load(tables + row * table_b + position // PAGE).to(tl.int64)
        at = tl.arange(0, BLOCK)
        here = at < heads * channels
        head = (at // channels).to(tl.int64)
        channel = at % channels
        k_new = tl.load(k + token * k_t + head * k_n + channel, mask=here)
        v_new = tl.load(v + token * v_t + head * v_n + channel, mask=here)
        place = (position % PAGE).to(tl.int64)
        tl.store(keys + block * keys_b + place * keys_s + head * keys_n + channel, k_new, mask=here)
        tl.store(values + block * values_b + place * values_s + head * values_n + channel, v_new, mask=here)


def store_kv(k: Tensor, v: Tensor, pages: Pages, rows: Tensor, positions: Tensor) -> None:
    """paged.store_kv() by store_kernel; see there for shapes."""
    tokens, heads, channels = k.shape
    if k.numel():
        block = triton.next_power_of_2(heads * channels)
        store_kernel[(tokens,)](
            k, v, *pages, rows, positions, *k.stride()[:2], *v.stride()[:2],
            *pages.keys.stride()[:3], *pages.values.stride()[:3], pages.tables.stride(0), heads, channels,
            PAGE=pages.size, BLOCK=block, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
