"""Triton: eight bits a value for the wire, with the head permutation in the same pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from videoserve_kernels.reference import LARGEST_CODE

# A tile of 16 tokens by one head of 128 channels is eight values a thread: enough loads in flight, few registers.
TOKENS = 16
# Adding and taking away 1.5 · 2^23 leaves a float32 below 2^22 rounded to the nearest integer, ties to even.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def place(batches, tokens, BLOCK_S: tl.constexpr):
    """Row of the batch, head and tokens of this program's tile, in 64 bits."""
    tiles = tl.cdiv(tokens, BLOCK_S)
    rows = (tl.program_id(0) % tiles * BLOCK_S + tl.arange(0, BLOCK_S)).to(tl.int64)
    others = (tl.program_id(0) // tiles).to(tl.int64)
    return others % batches, others // batches, rows


@triton.jit
def quantise_kernel(
    x, codes, scales, x_b, x_s, x_n, batches, tokens, channels, largest,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """s = max|x| / largest and c = x / s, to the nearest; x [B, S, N, D], codes [N, B, S, D], scales [N, B, S].

    One program a tile of tokens of one head. WHOLE says that codes are integers.
    """
    batch, head, rows = place(batches, tokens, BLOCK_S)
    columns = tl.arange(0, BLOCK_D)
    here = (rows < tokens)[:, None] & (columns < channels)[None, :]
    x_at = x + batch * x_b + head * x_n + rows[:, None] * x_s + columns[None, :]
    values = tl.load(x_at, mask=here, other=0.0).to(tl.float32)
    # A maximum passes over NaN; a sum does not, and 0 · infinity is NaN too.
    top = tl.max(tl.abs(values), 1) + tl.sum(values * 0.0, 1)
    scale = tl.div_rn(top, largest)
    code = tl.div_rn(values, tl.where(scale == 0, 1.0, scale)[:, None])
    # Past `largest` only where the scale is subnormal, too coarse a number.
    code = tl.where(code == code, tl.minimum(tl.maximum(code, -largest), largest), 0.0)
    if WHOLE:
        code = (code + ROUNDER) - ROUNDER
    row = (head * batches + batch) * tokens + rows
    tl.store(codes + row[:, None] * channels + columns[None, :], code.to(codes.dtype.element_ty), mask=here)
    tl.store(scales + row, scale, mask=rows < tokens)


def quantise_heads(x: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """quant.quantise_heads() by quantise_kernel; see there for shapes."""
    batch, tokens, heads, channels = x.shape
    codes = torch.empty((heads, batch, tokens, channels), dtype=dtype, device=x.device)
    scales = torch.empty((heads, batch, tokens), dtype=torch.float32, device=x.device)
    if codes.numel():
        quantise_kernel[(triton.cdiv(tokens, TOKENS) * batch * heads,)](
            x, codes, scales, *x.stride()[:3], batch, tokens, channels, LARGEST_CODE[dtype],
            BLOCK_S=TOKENS, BLOCK_D=triton.next_power_of_2(channels), WHOLE=dtype == torch.int8,
            num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return codes, scales


@triton.jit
def dequantise_kernel(
    codes, scales, out, o_b, o_s, o_n, batches, tokens, channels,
    BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """out = c · s; codes [N, B, S, D], scales [N, B, S], out [B, S, N, D] with strides. The same tiles."""
    batch, head, rows = place(batches, tokens, BLOCK_S)
    columns = tl.arange(0, BLOCK_D)
    here = (rows < tokens)[:, None] & (columns < channels)[None, :]
    row = (head * batches + batch) * tokens + rows
    code = tl.load(codes + row[:, None] * channels + columns[None, :], mask=here, other=0.0).to(tl.float32)
    scale = tl.load(scales + row, mask=rows < tokens, other=0.0)
    out_at = out + batch * o_b + head * o_n + rows[:, None] * o_s + columns[None, :]
    tl.store(out_at, (code * scale[:, None]).to(out.dtype.element_ty), mask=here)


def dequantise_heads(codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """quant.dequantise_heads() by dequantise_kernel; see there for shapes."""
    heads, batch, tokens, channels = codes.shape
    if out is None:
        out = torch.empty((batch, tokens, heads, channels), dtype=dtype, device=codes.device)
    if codes.numel():
        dequantise_kernel[(triton.cdiv(tokens, TOKENS) * batch * heads,)](
            codes, scales, out, *out.stride()[:3], batch, tokens, channels,
            BLOCK_S=TOKENS, BLOCK_D=triton.next_power_of_2(channels), num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out
