"""Triton: root-mean-square norm over all heads, alone and with the rotary embedding in the same pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def warps(block: int) -> int:
    """Warps for one token of `block` values: 16 to 32 values a thread keep loads wide and registers free."""
    return 4 if block <= 2048 else 8 if block <= 8192 else 16


@triton.jit
def rms_norm_kernel(
    x, weight, turns, out, x_b, x_s, tokens, channels, head_dim, eps,
    ROTATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """x / √(mean(x²) + eps) · weight, then with ROTATE each pair (2i, 2i + 1) of a head turned by the token's angle i.

    One program a token; x [B, S, C] with strides, out [B, S, C], turns float32 [S, D/2, 2] as (cos, sin).
    """
    token = tl.program_id(0).to(tl.int64)
    batch, at = token // tokens, token % tokens
    columns = tl.arange(0, BLOCK)
    here = columns < channels
    values = tl.load(x + batch * x_b + at * x_s + columns, mask=here, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns, mask=here, other=0.0).to(tl.float32)
    values = values * tl.rsqrt(tl.sum(values * values, 0) / channels + eps) * gain
    if ROTATE:
        pairs = tl.arange(0, BLOCK // 2)
        turn_at = turns + at * head_dim + pairs % (head_dim // 2) * 2
        inside = pairs * 2 < channels
        cos = tl.load(turn_at, mask=inside, other=0.0)
        sin = tl.load(turn_at + 1, mask=inside, other=0.0)
        even, odd = tl.split(tl.reshape(values, [BLOCK // 2, 2]))
        values = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), [BLOCK])
    tl.store(out + token * channels + columns, values.to(out.dtype.element_ty), mask=here)


def launch(x: Tensor, weight: Tensor, turns: Tensor | None, head_dim: int, eps: float) -> Tensor:
    """x [B, S, C] with contiguous channels, weight contiguous [C]; returns [B, S, C]."""
    batch, tokens, channels = x.shape
    out = torch.empty((batch, tokens, channels), dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(max(channels, 2))
        rms_norm_kernel[(batch * tokens,)](
            x, weight, weight if turns is None else turns, out, *x.stride()[:2], tokens, channels, head_dim, eps,
            ROTATE=turns is not None, BLOCK=block, num_warps=warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """norm.rms_norm() by rms_norm_kernel; see there for shapes."""
    rows = x.reshape(1, x.shape[:-1].numel(), x.shape[-1])
    return launch(rows, weight, None, x.shape[-1], eps).view(x.shape)


def rms_norm_rotate(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float) -> Tensor:
    """norm_rope.rms_norm_rotate() by rms_norm_kernel; see there for shapes."""
    head_dim = 2 * turns.shape[1]
    angles = torch.view_as_real(turns).contiguous()
    return torch.unflatten(launch(x, weight, angles, head_dim, eps), -1, (-1, head_dim))
