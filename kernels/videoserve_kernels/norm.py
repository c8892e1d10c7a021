"""Normalisation over the last axis; statistics in float32, result in the input's dtype."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · weight. x [..., C], weight [C]; returns x's shape and dtype."""
    values = x.float()
    # torch's own rms_norm makes twice as many passes over the memory of a CPU.
    norms: Tensor = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    inverse = norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (values * inverse).mul_(weight.float()).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias. x [..., C], weight and bias [C]; returns x's shape and dtype."""
    gain = None if weight is None else weight.float()
    offset = None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], gain, offset, eps).to(x.dtype)
