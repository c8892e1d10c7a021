"""Several tokens made into one entry of a cache: a softmax over them, in each channel on its own."""

import torch
from torch import Tensor

from videoserve_kernels import reference_sparse
from videoserve_kernels.backend import Backend, pick


def compress(
    values: Tensor,
    gates: Tensor,
    bias: Tensor,
    members: Tensor,
    before: Tensor | None = None,
    *,
    backend: str | None = None,
) -> Tensor:
    """Σ softmax(gate + bias) · value over the rows of each group, channel by channel.

    values and gates [R, C], bias float32 [P, C] by a row's place in its group, members int64 [G, P] into R. Returns
    [G, D] in the dtype of the values. Without `before` D is C. With it, [G, P] too, groups overlap: the second half of
    a row's channels goes into its own group and the first half into the one after it; rows of -1 are none.
    """
    return pick("compress", BACKENDS, backend, values, gates, bias, members, before)


def in_torch(values: Tensor, gates: Tensor, bias: Tensor, members: Tensor, before: Tensor | None = None) -> Tensor:
    """Both gathered; a softmax in float32."""
    v, g = values[members], gates[members].float() + bias  # [G, P, C]
    if before is not None:
        half = values.shape[1] // 2
        first = before.clamp(min=0)
        none = (before < 0)[..., None]
        earlier = (gates[first, :half].float() + bias[:, :half]).masked_fill(none, -torch.inf)
        v = torch.cat((values[first, :half].masked_fill(none, 0), v[..., half:]), dim=1)  # [G, 2P, D]
        g = torch.cat((earlier, g[..., half:]), dim=1)
    return (v * g.softmax(dim=1).to(v.dtype)).sum(dim=1)


def anywhere(values: Tensor, gates: Tensor, bias: Tensor, members: Tensor, before: Tensor | None = None) -> str | None:
    return None


BACKENDS = (
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.compress, why_not=anywhere),
)
