"""Triton: the streams of a residual opened and closed, each in one pass over them after one product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.mixing import Mixing

# Channels of a tile.
CHANNELS = 1024


@triton.jit
def open_kernel(
    streams, said, bias, scale, x, post, comb, s_t, s_h, count, channels, rounds, eps, norm_eps,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One token: said [M] is normalised and split, comb scaled by Sinkhorn, and the streams are added up by pre.

    What lies past `count` streams stays zero.
    """
    token = tl.program_id(0).to(tl.int64)
    streams += token * s_t
    stream = tl.arange(0, BLOCK_H)
    other = tl.arange(0, BLOCK_H)
    there = stream < count
    both = there[:, None] & (other < count)[None, :]
    channel = tl.arange(0, BLOCK_C)
    squares = tl.zeros([BLOCK_C], dtype=tl.float32)
    for first in range(0, channels, BLOCK_C):
        inside = there[:, None] & (first + channel < channels)[None, :]
        tile = tl.load(streams + stream[:, None] * s_h + first + channel[None, :], mask=inside, other=0.0)
        tile = tile.to(tl.float32)
        squares += tl.sum(tile * tile, 0)
    inverse = tl.rsqrt(tl.sum(squares, 0) / (count * channels) + norm_eps)
    said += token * (2 + count) * count
    pre_said = tl.load(said + stream, mask=there, other=0.0) * inverse
    pre = tl.sigmoid(pre_said * tl.load(scale) + tl.load(bias + stream, mask=there, other=0.0)) + eps
    post_said = tl.load(said + count + stream, mask=there, other=0.0) * inverse
    back = 2 * tl.sigmoid(post_said * tl.load(scale + 1) + tl.load(bias + count + stream, mask=there, other=0.0))
    tl.store(post + token * count + stream, back, mask=there)
    at = 2 * count + stream[:, None] * count + other[None, :]
    mixed = tl.load(said + at, mask=both, other=0.0) * inverse * tl.load(scale + 2)
    mixed = tl.where(both, mixed + tl.load(bias + at, mask=both, other=0.0), float("-inf"))
    largest = tl.where(there, tl.max(mixed, 1), 0.0)
    mixed = tl.exp(mixed - largest[:, None])
    total = tl.sum(mixed, 1)
    mixed = tl.where(both, mixed / tl.where(there, total, 1.0)[:, None] + eps, 0.0)
    mixed = mixed / (tl.sum(mixed, 0) + eps)[None, :]
    for _ in range(1, rounds):
        mixed = mixed / (tl.sum(mixed, 1) + eps)[:, None]
        mixed = mixed / (tl.sum(mixed, 0) + eps)[None, :]
    tl.store(comb + token * count * count + stream[:, None] * count + other[None, :], mixed, mask=both)
    for first in range(0, channels, BLOCK_C):
        inside = first + channel < channels
        tile_at = streams + stream[:, None] * s_h + first + channel[None, :]
        tile = tl.load(tile_at, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
        taken = tl.sum(tile * pre[:, None], 0)
        tl.store(x + token * channels + first + channel, taken.to(x.dtype.element_ty), mask=inside)


@triton.jit
def close_kernel(
    out, streams, post, comb, new, o_t, s_t, s_h, count, channels, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """One token, one tile of channels: new_k = post_k · out + Σ_j comb_jk · stream_j."""
    token = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    stream = tl.arange(0, BLOCK_H)
    there = stream < count
    result = tl.load(out + token * o_t + channel, mask=inside, other=0.0).to(tl.float32)
    back = tl.load(post + token * count + stream, mask=there, other=0.0)
    total = back[:, None] * result[None, :]  # [H, C]
    for j in range(0, count):
        tile = tl.load(streams + token * s_t + j * s_h + channel, mask=inside, other=0.0).to(tl.float32)
        shares = tl.load(comb + (token * count + j) * count + stream, mask=there, other=0.0)
        total += shares[:, None] * tile[None, :]
    new_at = new + (token * count + stream)[:, None] * channels + channel[None, :]
    tl.store(new_at, total.to(new.dtype.element_ty), mask=there[:, None] & inside[None, :])


def open_streams(
    streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """streams.open_streams() by one product and open_kernel."""
    tokens, count, channels = streams.shape
    x = torch.empty((tokens, channels), dtype=streams.dtype, device=streams.device)
    post = torch.empty((tokens, count), dtype=torch.float32, device=streams.device)
    comb = torch.empty((tokens, count, count), dtype=torch.float32, device=streams.device)
    if streams.numel():
        said = streams.flatten(1).float() @ mixing.weight.t()
        open_kernel[(tokens,)](
            streams, said, mixing.bias, mixing.scale, x, post, comb, *streams.stride()[:2], count, channels, rounds,
            eps, norm_eps, BLOCK_H=triton.next_power_of_2(count), BLOCK_C=CHANNELS, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return x, post, comb


def close_streams(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """streams.close_streams() by close_kernel; sums in float32."""
    tokens, count, channels = streams.shape
    new = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    if streams.numel():
        close_kernel[(tokens, triton.cdiv(channels, CHANNELS))](
            out, streams, post, comb, new, out.stride(0), *streams.stride()[:2], count, channels,
            BLOCK_H=triton.next_power_of_2(count), BLOCK_C=CHANNELS, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return new
