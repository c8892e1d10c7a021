"""The low-rank addition of adapters: every slot has the same padded rank, so that a change of adapter changes numbers
only and never a shape."""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton

# A kernel holds the whole rank of one tile of rows in registers.
LARGEST_RANK = 128


def add_low_rank(
    y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None, backend: str | None = None
) -> Tensor:
    """y += (x Aᵀ) Bᵀ, in place; returns y.

    y [..., O] and x [..., I] contiguous; a [R, I] and b [O, R], where the rows and columns past an adapter's own rank
    are zero and the adapter's weight is part of b. Products are summed in float32; x Aᵀ is rounded to x's dtype.
    With `slots` int32 [...] every row has an adapter of its own, of a [L, R, I] and b [L, O, R], or none at -1; each
    row gets the bits that a call with its slot for all rows would give it.
    """
    return pick("add_low_rank", BACKENDS, backend, y, x, a, b, slots=slots)


def in_torch(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> Tensor:
    """Two products of matrices, the second one into y; for every slot that is in use over all rows, for equal bits."""
    rows, sums = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    if slots is None:
        sums.addmm_(rows @ a.t(), b.t())
        return y
    for slot in set(slots.view(-1).tolist()):
        if slot >= 0:
            added = torch.addmm(sums, rows @ a[slot].t(), b[slot].t())
            torch.where(slots.view(-1, 1) == slot, added, sums, out=sums)
    return y


def anywhere(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> str | None:
    return None


def in_triton(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> Tensor:
    """Our Triton kernel: x is read once and x Aᵀ never leaves the card's registers."""
    from videoserve_kernels import low_rank_kernel

    return low_rank_kernel.add_low_rank(y, x, a, b, slots=slots)


def no_kernel(y: Tensor, x: Tensor, a: Tensor, b: Tensor, *, slots: Tensor | None = None) -> str | None:
    tensors = (y, x, a, b) if slots is None else (y, x, a, b, slots)
    if why := no_triton(*tensors):
        return why
    if a.shape[-2] > LARGEST_RANK:
        return f"it takes ranks up to {LARGEST_RANK}, not {a.shape[-2]}"
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "it takes contiguous tensors only"
    if len({y.dtype, x.dtype, a.dtype, b.dtype}) != 1:
        return f"it takes tensors of one type, not {y.dtype}, {x.dtype}, {a.dtype} and {b.dtype}"
    return None


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.add_low_rank, why_not=anywhere),
)
