"""Normalisation over the last axis; statistics in float32, result in the input's dtype."""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton

# A kernel holds a whole token in the registers of one program.
LARGEST_TOKEN = 16384


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, backend: str | None = None) -> Tensor:
    """x / √(mean(x²) + eps) · weight. x [..., C], weight [C]; returns x's shape and dtype."""
    return pick("rms_norm", RMS_NORM, backend, x, weight, eps=eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """rms_norm() of x + residual, and x + residual, the residual of what follows.

    x and residual [..., C] of one dtype, weight [C]; both results have it too, and the sum is rounded to it before it
    is normalised.
    """
    return pick("add_rms_norm", ADD_RMS_NORM, backend, x, residual, weight, eps=eps)


def torch_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The formula with few passes over memory."""
    values = x.float()
    # torch's own rms_norm makes twice as many passes over the memory of a CPU.
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    inverse = norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (values * inverse).mul_(weight.float()).to(x.dtype)


def triton_rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import norm_kernel

    return norm_kernel.rms_norm(x, weight, eps=eps)


def torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """One after the other."""
    total = x + residual
    return torch_rms_norm(total, weight, eps=eps), total


def triton_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Our Triton kernel, one pass."""
    from videoserve_kernels import norm_kernel

    return norm_kernel.add_rms_norm(x, residual, weight, eps=eps)


def no_kernel(*tensors: Tensor, eps: float) -> str | None:
    if why := no_triton(*tensors):
        return why
    if (channels := tensors[0].shape[-1]) > LARGEST_TOKEN:
        return f"it takes up to {LARGEST_TOKEN} channels, not {channels}"
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        return "it takes contiguous channels only"
    return None


def anywhere(*tensors: Tensor, eps: float) -> str | None:
    return None


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias. x [..., C], weight and bias [C]; returns x's shape and dtype."""
    gain = None if weight is None else weight.float()
    offset = None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], gain, offset, eps).to(x.dtype)


RMS_NORM = (
    Backend(name="triton", fn=triton_rms_norm, why_not=no_kernel),
    Backend(name="torch", fn=torch_rms_norm, why_not=anywhere),
    Backend(name="reference", fn=reference.rms_norm, why_not=anywhere),
)
ADD_RMS_NORM = (
    Backend(name="triton", fn=triton_add_rms_norm, why_not=no_kernel),
    Backend(name="torch", fn=torch_add_rms_norm, why_not=anywhere),
    Backend(name="reference", fn=reference.add_rms_norm, why_not=anywhere),
)
