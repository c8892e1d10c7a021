"""Attention of each token over entries that it names one by one: neighbours, and what was chosen far off."""

import torch
from torch import Tensor

from videoserve_kernels import reference_sparse
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.paged import LARGEST_HEAD
from videoserve_kernels.triton_gate import no_triton

# Values of keys that are gathered at a time: 64 MiB in float32.
GATHERED = 2**24


def sparse_attention(
    q: Tensor,
    near: Tensor,
    at: Tensor,
    far: Tensor | None = None,
    far_at: Tensor | None = None,
    *,
    sinks: Tensor,
    backend: str | None = None,
) -> Tensor:
    """softmax(q kᵀ / √D) k over the entries of two pools that a token names, which are keys and values of all heads.

    q [T, N, D]; near [L, D] with at int64 [T, K] into L, far [L', D] with far_at [T, K'] alike; -1 is none, and K is at
    least 1. sinks float32 [N] stand beside a head's keys with a score and no value. Returns [T, N, D] in q's dtype.
    Entries that a token does not name may hold anything.
    """
    return pick("sparse_attention", BACKENDS, backend, q, near, at, far, far_at, sinks=sinks)


def in_torch(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> Tensor:
    """Each token's entries side by side, and two batched products; a few tokens at a time."""
    named = at.shape[1] + (0 if far_at is None else far_at.shape[1])
    step = max(GATHERED // max(named * q.shape[2], 1), 1)
    out = torch.empty_like(q)
    for first in range(0, len(q), step):
        part = slice(first, first + step)
        kv, seen = gathered(near, at[part])
        if far is not None and far_at is not None:
            more, more_seen = gathered(far, far_at[part])
            kv, seen = torch.cat((kv, more), dim=1), torch.cat((seen, more_seen), dim=1)
        out[part] = attended(q[part], kv, seen, sinks)
    return out


def gathered(pool: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """[T, K, D], zeros for none, and which are some, bool [T, K]."""
    seen = at >= 0
    if not len(pool):
        return pool.new_zeros(*at.shape, pool.shape[1]), seen
    found = pool.index_select(0, at.clamp(min=0).flatten()).view(*at.shape, pool.shape[1])
    # A weight of zero does not hide what is not finite.
    return found.masked_fill_(~seen[..., None], 0), seen


def attended(q: Tensor, kv: Tensor, seen: Tensor, sinks: Tensor) -> Tensor:
    """q [T, N, D] over kv [T, K, D] where seen [T, K]."""
    scores = (q @ kv.transpose(1, 2)).float().mul_(q.shape[-1] ** -0.5)  # [T, N, K]
    scores.masked_fill_(~seen[:, None], -torch.inf)
    beside = sinks.float()[None, :, None]
    largest = torch.maximum(scores.amax(dim=-1, keepdim=True), beside)
    weights = scores.sub_(largest).exp_()
    total = weights.sum(dim=-1, keepdim=True).add_((beside - largest).exp())
    return weights.div_(total).to(kv.dtype) @ kv


def in_triton(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> Tensor:
    """Our Triton kernel."""
    from videoserve_kernels import sparse_kernel

    return sparse_kernel.sparse_attention(q, near, at, far, far_at, sinks=sinks)


def no_kernel(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> str | None:
    given = [tensor for tensor in (q, near, at, far, far_at) if tensor is not None]
    if why := no_triton(*given, sinks):
        return why
    if any(tensor.stride(-1) != 1 for tensor in given):
        return "it takes contiguous channels and names only"
    if q.shape[-1] > LARGEST_HEAD:
        return f"it takes up to {LARGEST_HEAD} channels a head, not {q.shape[-1]}"
    if near.dtype != q.dtype or (far is not None and far.dtype != q.dtype):
        return f"it takes one type, not {', '.join(str(t.dtype) for t in (q, near, far) if t is not None)}"
    return None


def anywhere(
    q: Tensor, near: Tensor, at: Tensor, far: Tensor | None = None, far_at: Tensor | None = None, *, sinks: Tensor
) -> str | None:
    return None


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.sparse_attention, why_not=anywhere),
)
