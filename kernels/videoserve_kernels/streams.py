"""Hyper-connections: a residual of several streams, mixed by small matrices that each token makes of its own.

A block takes its input out of the streams with `open_streams` and puts its result back with `close_streams`; after the
last block `join_streams` leaves one.
"""

from typing import Any

import torch
from torch import Tensor

from videoserve_kernels import reference_sparse
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.mixing import Mixing
from videoserve_kernels.triton_gate import no_triton

# A kernel holds a tile of all streams in the registers of one program.
MOST_STREAMS = 8


def open_streams(
    streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float, backend: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block gets out of the streams, and how its result comes back into them.

    streams [T, H, C]; returns x [T, C] in their dtype, post [T, H] and comb [T, H, H] in float32. comb is brought near
    to rows and columns that sum to 1 by `rounds` of Sinkhorn's scaling; norm_eps is that of the norm over H·C.
    """
    return pick("open_streams", OPEN, backend, streams, mixing, rounds=rounds, eps=eps, norm_eps=norm_eps)


def close_streams(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor, *, backend: str | None = None) -> Tensor:
    """post_k · out + Σ_j comb_jk · stream_j. out [T, C], streams [T, H, C] of one dtype; returns the new streams."""
    return pick("close_streams", CLOSE, backend, out, streams, post, comb)


def join_streams(streams: Tensor, mixing: Mixing, *, eps: float, norm_eps: float, backend: str | None = None) -> Tensor:
    """The streams [T, H, C] added up, each token with weights of its own; returns [T, C] in their dtype."""
    return pick("join_streams", JOIN, backend, streams, mixing, eps=eps, norm_eps=norm_eps)


def mixed(streams: Tensor, weight: Tensor, norm_eps: float) -> Tensor:
    """weight · rms_norm of all streams of a token, float32 [T, M]: the few results are scaled, not the streams."""
    flat = streams.flatten(1).float()
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
    return (flat @ weight.t()).mul_(norms.square_().div_(flat.shape[1]).add_(norm_eps).rsqrt_())


def taken(shares: Tensor, streams: Tensor) -> Tensor:
    """The streams [T, H, C] added up by their shares [T, H]."""
    return (shares[:, None] @ streams.float())[:, 0].to(streams.dtype)


def open_in_torch(
    streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One product for all three, then scaling in place."""
    count = streams.shape[1]
    pre, post, comb = torch.split(mixed(streams, mixing.weight, norm_eps), [count, count, count**2], dim=1)
    pre_bias, post_bias, comb_bias = torch.split(mixing.bias, [count, count, count**2])
    pre = torch.addcmul(pre_bias, pre, mixing.scale[0]).sigmoid_().add_(eps)
    post = torch.addcmul(post_bias, post, mixing.scale[1]).sigmoid_().mul_(2)
    comb = torch.unflatten(torch.addcmul(comb_bias, comb, mixing.scale[2]), 1, (count, count)).softmax(dim=2).add_(eps)
    comb.div_(comb.sum(dim=1, keepdim=True).add_(eps))
    for _ in range(rounds - 1):
        comb.div_(comb.sum(dim=2, keepdim=True).add_(eps))
        comb.div_(comb.sum(dim=1, keepdim=True).add_(eps))
    return taken(pre, streams), post, comb


def close_in_torch(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """One batched product, to which the block's result is added on the way."""
    first = post.to(out.dtype)[:, :, None] * out[:, None]
    return torch.baddbmm(first, comb.to(out.dtype).transpose(1, 2), streams)


def join_in_torch(streams: Tensor, mixing: Mixing, *, eps: float, norm_eps: float) -> Tensor:
    """As open_in_torch() without what comes back."""
    shares = mixed(streams, mixing.weight, norm_eps).mul_(mixing.scale).add_(mixing.bias).sigmoid_().add_(eps)
    return taken(shares, streams)


def open_in_triton(
    streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Our Triton kernel, after the product."""
    from videoserve_kernels import streams_kernel

    return streams_kernel.open_streams(streams, mixing, rounds=rounds, eps=eps, norm_eps=norm_eps)


def close_in_triton(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import streams_kernel

    return streams_kernel.close_streams(out, streams, post, comb)


def no_open(streams: Tensor, mixing: Mixing, *, rounds: int, eps: float, norm_eps: float) -> str | None:
    if why := no_triton(streams, *mixing):
        return why
    return no_channels(streams)


def no_close(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> str | None:
    if why := no_triton(out, streams, post, comb):
        return why
    if not (post.is_contiguous() and comb.is_contiguous()):
        return "it takes contiguous weights only"
    return no_channels(out, streams)


def no_channels(*tensors: Tensor) -> str | None:
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        return "it takes contiguous channels only"
    if (count := tensors[-1].shape[1]) > MOST_STREAMS:
        return f"it takes up to {MOST_STREAMS} streams, not {count}"
    return None


def anywhere(*tensors: Any, **options: Any) -> str | None:
    return None


OPEN = (
    Backend(name="triton", fn=open_in_triton, why_not=no_open),
    Backend(name="torch", fn=open_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.open_streams, why_not=anywhere),
)
CLOSE = (
    Backend(name="triton", fn=close_in_triton, why_not=no_close),
    Backend(name="torch", fn=close_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.close_streams, why_not=anywhere),
)
JOIN = (
    Backend(name="torch", fn=join_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.join_streams, why_not=anywhere),
)
