"""The one attention door. Layout is [B, S, N, D] everywhere."""

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import Backend, pick


def attend(q: Tensor, k: Tensor, v: Tensor, *, key_bias: Tensor | None = None, backend: str | None = None) -> Tensor:
    """softmax(q kᵀ / √D + key_bias) v.

    q [B, S, N, D]; k and v [B, L, N, D]; key_bias [B, L] is added to the scores of a key: log(n) makes one key stand
    for n equal ones, -inf takes it out (at least one key of each row must stay). Returns [B, S, N, D] in q's dtype.
    `backend` forces one by name; BackendUnavailableError says why it cannot run.
    """
    return pick("attend", BACKENDS, backend, q, k, v, key_bias=key_bias)


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, key_bias: Tensor | None = None) -> Tensor:
    """torch's scaled_dot_product_attention, which takes the strides of [B, S, N, D] without a copy."""
    mask = None if key_bias is None else key_bias[:, None, None, :].to(q.dtype)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
    )
    return out.transpose(1, 2)


def anywhere(q: Tensor, k: Tensor, v: Tensor, *, key_bias: Tensor | None = None) -> str | None:
    return None


BACKENDS = (
    Backend(name="sdpa", fn=sdpa, why_not=anywhere),
    Backend(name="reference", fn=reference.attend, why_not=anywhere),
)
