"""How far an activation has moved: the sums that a cache compares with its threshold, and shards add up."""

from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton


def drift(a: Tensor, b: Tensor, *, mask: Tensor | None = None, backend: str | None = None) -> Tensor:
    """Σ|a - b|, Σ|b| and the number of values, of each row on its own.

    a and b [B, S, C] of one dtype; mask bool [B, S] says which tokens count, the others are not looked at. Returns
    float32 [B, 3]; sums of shards add up. NaN and infinity in a token that counts come through.
    """
    return pick("drift", BACKENDS, backend, a, b, mask=mask)


def in_torch(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The formula in float32."""
    return reference.drift(a.float(), b.float(), mask=mask)


def anywhere(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> str | None:
    return None


def in_triton(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Our Triton kernel, one pass over both."""
    from videoserve_kernels import drift_kernel

    return drift_kernel.drift(a, b, mask=mask)


def no_kernel(a: Tensor, b: Tensor, *, mask: Tensor | None = None) -> str | None:
    if why := no_triton(a, b):
        return why
    if a.stride(-1) != 1 or b.stride(-1) != 1:
        return "it takes contiguous channels only"
    return None


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.drift, why_not=anywhere),
)
