"""Root-mean-square norm over all heads and the rotary embedding after it, as Wan's queries and keys take them."""

import torch
from torch import Tensor

from videoserve_kernels import norm, reference, rope
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton


def rms_norm_rotate(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float, backend: str | None = None) -> Tensor:
    """rms_norm over all heads of a token, split into heads, each pair (2i, 2i + 1) turned by the angle (position, i).

    x [B, S, N·D] with contiguous channels, weight [N·D], turns complex64 [S, D/2]; returns [B, S, N, D] in x's dtype.
    """
    return pick("rms_norm_rotate", BACKENDS, backend, x, weight, turns, eps=eps)


def in_torch(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float) -> Tensor:
    """The two doors one after the other."""
    return rope.rotate(torch.unflatten(norm.rms_norm(x, weight, eps=eps), -1, (-1, 2 * turns.shape[1])), turns)


def anywhere(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float) -> str | None:
    return None


def in_triton(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float) -> Tensor:
    """Our Triton kernel, one pass."""
    from videoserve_kernels import norm_kernel

    return norm_kernel.rms_norm_rotate(x, weight, turns, eps=eps)


def no_kernel(x: Tensor, weight: Tensor, turns: Tensor, *, eps: float) -> str | None:
    return norm.no_kernel(x, weight, eps=eps) or no_triton(turns)


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.rms_norm_rotate, why_not=anywhere),
)
