"""Triton: root-mean-square norms, with the addition of the residual or the rotary embedding in the same pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def warps(block: int) -> int:
    """Warps for one token of `block` values: 16 to 32 values a thread keep loads wide and registers free."""
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


@triton.jit
def rms_norm_kernel(x, residual, weight, out, total, x_s, r_s, channels, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """x / √(mean(x²) + eps) · weight; with ADD of x + residual, which `total` gets, rounded to its type.

    One program a token; x and residual [S, C] with strides, out and total [S, C].
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    here = columns < channels
    values = tl.load(x + token * x_s + columns, mask=here, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(residual + token * r_s + columns, mask=here, other=0.0).to(tl.float32)
        rounded = values.to(total.dtype.element_ty)
        tl.store(total + token * channels + columns, rounded, mask=here)
        values = rounded.to(tl.float32)
    gain = tl.load(weight + columns, mask=here, other=0.0).to(tl.float32)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / channels + eps) * gain
    tl.store(out + token * channels + columns, values.to(out.dtype.element_ty), mask=here)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """norm.rms_norm() by rms_norm_kernel; see there for shapes."""
    return launch(x, None, weight, eps)[0]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """norm.add_rms_norm() by rms_norm_kernel; see there for shapes."""
    return launch(x, residual, weight, eps)


def launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm [..., C] and, where there is a residual, the sum."""
    channels = x.shape[-1]
    rows = x.reshape(-1, channels) if channels else x
    added = rows if residual is None else residual.reshape(-1, channels)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(channels)
        rms_norm_kernel[(len(rows),)](
            rows, added, weight, out, total, rows.stride(0), added.stride(0), channels, eps,
            ADD=residual is not None, BLOCK=block, num_warps=warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out, total


@triton.jit
def load_pairs(at, heads, half, HALVES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr):
    """First and second of each pair of channels, float32 [N, D/2] each; `at` holds where the heads begin, [N, 1]."""
    there = (tl.arange(0, BLOCK_N) < heads)[:, None]
    if HALVES:
        column = tl.arange(0, BLOCK_H)[None, :]
        first = tl.load(at + column, mask=there & (column < half), other=0.0)
        second = tl.load(at + half + column, mask=there & (column < half), other=0.0)
    else:
        column = tl.arange(0, 2 * BLOCK_H)[None, :]
        both = tl.load(at + column, mask=there & (column < 2 * half), other=0.0)
        first, second = tl.split(tl.reshape(both, [BLOCK_N, BLOCK_H, 2]))
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def rotate_kernel(
    x, weight, turns, out, x_b, x_s, x_n, tokens, heads, half, eps,
    NORM: tl.constexpr, EACH: tl.constexpr, HALVES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """With NORM x / √(mean(x²) + eps) · weight over all heads of a token, or with EACH over each; then each pair of a
    head turned by the token's angle: (a, b) to (a cos - b sin, a sin + b cos).

    One program a token; x [B, S, N, D] with strides, out [B, S, N, D], turns float32 [S, D/2, 2] as (cos, sin).
    """
    token = tl.program_id(0).to(tl.int64)
    batch, at = token // tokens, token % tokens
    head = tl.arange(0, BLOCK_N)[:, None]
    first, second = load_pairs(
        x + batch * x_b + at * x_s + head.to(tl.int64) * x_n, heads, half, HALVES, BLOCK_N, BLOCK_H
    )  # fmt: skip
    if NORM:
        squares = tl.sum(first * first + second * second, 1)
        if EACH:
            inverse = tl.rsqrt(squares / (2 * half) + eps)[:, None]
            gain, more = load_pairs(weight + head * 0, heads, half, HALVES, BLOCK_N, BLOCK_H)
        else:
            inverse = tl.rsqrt(tl.sum(squares, 0) / (2 * half * heads) + eps)
            gain, more = load_pairs(weight + head * 2 * half, heads, half, HALVES, BLOCK_N, BLOCK_H)
        first = first * inverse * gain
        second = second * inverse * more
    pair = tl.arange(0, BLOCK_H)[None, :]
    cos = tl.load(turns + (at * half + pair) * 2, mask=pair < half, other=0.0)
    sin = tl.load(turns + (at * half + pair) * 2 + 1, mask=pair < half, other=0.0)
    a = (first * cos - second * sin).to(out.dtype.element_ty)
    b = (first * sin + second * cos).to(out.dtype.element_ty)
    out_at = out + (token * heads + head) * 2 * half
    if HALVES:
        here = (head < heads) & (pair < half)
        tl.store(out_at + pair, a, mask=here)
        tl.store(out_at + half + pair, b, mask=here)
    else:
        column = tl.arange(0, 2 * BLOCK_H)[None, :]
        both = tl.reshape(tl.join(a, b), [BLOCK_N, 2 * BLOCK_H])
        tl.store(out_at + column, both, mask=(head < heads) & (column < 2 * half))


def rotate(x: Tensor, turns: Tensor, *, weight: Tensor | None, eps: float, halves: bool) -> Tensor:
    """norm_rope.rms_norm_rotate() of heads [B, S, N, D] and, without a weight, rope.rotate() by rotate_kernel."""
    batch, tokens, heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        block_n, block_h = triton.next_power_of_2(heads), triton.next_power_of_2(head_dim // 2)
        rotate_kernel[(batch * tokens,)](
            x, x if weight is None else weight, torch.view_as_real(turns).contiguous(), out, *x.stride()[:3],
            tokens, heads, head_dim // 2, eps,
            NORM=weight is not None, EACH=weight is not None and len(weight) == head_dim, HALVES=halves,
            BLOCK_N=block_n, BLOCK_H=block_h, num_warps=warps(2 * block_n * block_h), enable_fp_fusion=True,
        )  # fmt: skip
    return out
