"""Triton: timestep modulation out of a table of a few rows; the table of every token is never made."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.norm_kernel import warps


@triton.jit
def place(frame_index, tokens, per_frame):
    """The token of this program, in the batch and in 64 bits, the row of the batch, and its row of the tables."""
    token = tl.program_id(0).to(tl.int64)
    return token, token // tokens, tl.load(frame_index + token % tokens // per_frame)


@triton.jit
def modulated_norm_kernel(
    x, shift, scale, frame_index, out, x_b, x_s, s_b, s_k, c_b, c_k, tokens, per_frame, channels, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(x - mean) / √(var + eps) · (1 + scale) + shift with row frame_index[s // P] of the tables [B, K, C].

    One program a token; x [B, S, C] with strides, out [B, S, C].
    """
    token, batch, row = place(frame_index, tokens, per_frame)
    columns = tl.arange(0, BLOCK)
    here = columns < channels
    values = tl.load(x + batch * x_b + token % tokens * x_s + columns, mask=here, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / channels
    # The mean of the squares less the square of the mean would lose what they have in common.
    centred = tl.where(here, values - mean, 0.0)
    normal = centred * tl.rsqrt(tl.sum(centred * centred, 0) / channels + eps)
    gain = tl.load(scale + batch * c_b + row * c_k + columns, mask=here, other=0.0).to(tl.float32)
    offset = tl.load(shift + batch * s_b + row * s_k + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out + token * channels + columns, (normal * (1 + gain) + offset).to(out.dtype.element_ty), mask=here)


def modulated_norm(x: Tensor, shift: Tensor, scale: Tensor, frame_index: Tensor, *, eps: float) -> Tensor:
    """modulate.modulated_norm() by modulated_norm_kernel; see there for shapes."""
    batch, tokens, channels = x.shape
    out = torch.empty((batch, tokens, channels), dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(channels)
        modulated_norm_kernel[(batch * tokens,)](
            x, shift, scale, frame_index, out, *x.stride()[:2], *shift.stride()[:2], *scale.stride()[:2],
            tokens, tokens // len(frame_index), channels, eps,
            BLOCK=block, num_warps=warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out


@triton.jit
def gated_residual_kernel(
    x, y, gate, frame_index, out, x_b, x_s, y_b, y_s, g_b, g_k, tokens, per_frame, channels,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """x + y · gate with row frame_index[s // P] of the table [B, K, C]. One program a token."""
    token, batch, row = place(frame_index, tokens, per_frame)
    columns = tl.arange(0, BLOCK)
    here = columns < channels
    values = tl.load(x + batch * x_b + token % tokens * x_s + columns, mask=here, other=0.0).to(tl.float32)
    added = tl.load(y + batch * y_b + token % tokens * y_s + columns, mask=here, other=0.0).to(tl.float32)
    share = tl.load(gate + batch * g_b + row * g_k + columns, mask=here, other=0.0).to(tl.float32)
    tl.store(out + token * channels + columns, (values + added * share).to(out.dtype.element_ty), mask=here)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor, frame_index: Tensor) -> Tensor:
    """modulate.gated_residual() by gated_residual_kernel; see there for shapes."""
    batch, tokens, channels = x.shape
    out = torch.empty((batch, tokens, channels), dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(channels)
        gated_residual_kernel[(batch * tokens,)](
            x, y, gate, frame_index, out, *x.stride()[:2], *y.stride()[:2], *gate.stride()[:2],
            tokens, tokens // len(frame_index), channels,
            BLOCK=block, num_warps=warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out
