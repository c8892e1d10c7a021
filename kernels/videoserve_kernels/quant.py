"""Eight bits a value with one float32 scale for each head of each token: half the bytes on the wire.

Codes are head-major: the heads of any rank, evenly shared out or not, are one contiguous run.
"""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_float8, no_triton


def quantise_heads(x: Tensor, *, dtype: torch.dtype, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Codes c = round(x / s) with s = max|x| / 127 over the channels of a head (fp8: max|x| / 448).

    x [B, S, N, D] with contiguous channels; `dtype` torch.int8 or torch.float8_e4m3fn. Returns codes [N, B, S, D] and
    scales float32 [N, B, S]. A head that holds NaN or infinity comes back from dequantise_heads as NaN.
    """
    return pick("quantise_heads", QUANTISE, backend, x, dtype=dtype)


def dequantise_heads(
    codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """c · s back in the layout of attention: codes [N, B, S, D] and scales float32 [N, B, S] to [B, S, N, D].

    `out`, of `dtype` and any strides with contiguous channels, takes the result: the part of a larger tensor that one
    peer sent. Returns it, or a new tensor.
    """
    return pick("dequantise_heads", DEQUANTISE, backend, codes, scales, dtype=dtype, out=out)


def triton_quantise(x: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Our Triton kernel."""
    from videoserve_kernels import quant_kernel

    return quant_kernel.quantise_heads(x, dtype=dtype)


def no_quantise(x: Tensor, *, dtype: torch.dtype) -> str | None:
    if why := no_triton(x):
        return why
    if x.stride(-1) != 1:
        return "it takes contiguous channels only"
    return no_codes(x, dtype)


def triton_dequantise(codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import quant_kernel

    return quant_kernel.dequantise_heads(codes, scales, dtype=dtype, out=out)


def no_dequantise(codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None) -> str | None:
    if why := no_triton(codes, scales):
        return why
    if not (codes.is_contiguous() and scales.is_contiguous()):
        return "it takes contiguous codes and scales only"
    if out is not None and out.stride(-1) != 1:
        return "it takes an output with contiguous channels only"
    return no_codes(codes, codes.dtype)


def no_codes(tensor: Tensor, dtype: torch.dtype) -> str | None:
    """Why this card cannot make or read codes of this type."""
    if dtype not in (torch.int8, torch.float8_e4m3fn):
        return f"codes are torch.int8 or torch.float8_e4m3fn, not {dtype}"
    return no_float8(tensor) if dtype == torch.float8_e4m3fn else None


def no_reference(x: Tensor, *, dtype: torch.dtype) -> str | None:
    return None if dtype in reference.LARGEST_CODE else no_codes(x, dtype)


def anywhere(codes: Tensor, scales: Tensor, *, dtype: torch.dtype, out: Tensor | None = None) -> str | None:
    return None


QUANTISE = (
    Backend(name="triton", fn=triton_quantise, why_not=no_quantise),
    Backend(name="reference", fn=reference.quantise_heads, why_not=no_reference),
)
DEQUANTISE = (
    Backend(name="triton", fn=triton_dequantise, why_not=no_dequantise),
    Backend(name="reference", fn=reference.dequantise_heads, why_not=anywhere),
)
