"""Root-mean-square norm of queries and keys and the rotary embedding after it, in one pass.

Over all heads of a token, as Wan has it, or over each head, as Qwen has it.
"""

import torch
from torch import Tensor

from videoserve_kernels import norm, reference, rope
from videoserve_kernels.backend import Backend, pick


def rms_norm_rotate(
    x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False, backend: str | None = None
) -> Tensor:
    """rms_norm over all heads of a token or, with a weight of one head, over each; then rope.rotate().

    x [B, S, N·D] with contiguous channels, weight [N·D] or [D], turns complex64 [S, D/2]; returns [B, S, N, D] in x's
    dtype. `halves` as in rope.rotate().
    """
    return pick("rms_norm_rotate", BACKENDS, backend, x, weight, turns, eps=eps, halves=halves)


def in_torch(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False) -> Tensor:
    """One after the other."""
    heads = (-1, 2 * turns.shape[1])
    if len(weight) == heads[1]:
        normal = norm.torch_rms_norm(torch.unflatten(x, -1, heads), weight, eps=eps)
    else:
        normal = torch.unflatten(norm.torch_rms_norm(x, weight, eps=eps), -1, heads)
    return rope.in_torch(normal, turns, halves=halves)


def anywhere(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False) -> str | None:
    return None


def in_triton(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False) -> Tensor:
    """Our Triton kernel, one pass."""
    from videoserve_kernels import norm_kernel

    heads = torch.unflatten(x, -1, (-1, 2 * turns.shape[1]))
    return norm_kernel.rotate(heads, turns, weight=weight, eps=eps, halves=halves)


def no_kernel(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, halves: bool = False) -> str | None:
    if why := norm.no_kernel(x, weight, eps=eps):
        return why
    return rope.no_kernel(torch.unflatten(x, -1, (-1, 2 * turns.shape[1])), turns)


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.rms_norm_rotate, why_not=anywhere),
)
