"""Normalisation over the last axis; statistics in float32, result in the input's dtype."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / √(mean(x²) + eps) · weight. x [..., C], weight [C]; returns x's shape and dtype."""
    normal = torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return normal.to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias. x [..., C], weight and bias [C]; returns x's shape and dtype."""
    gain = None if weight is None else weight.float()
    offset = None if bias is None else bias.float()
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], gain, offset, eps).to(x.dtype)
