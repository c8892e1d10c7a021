"""Attention over parts of the keys, put together: what a ring of ranks does after each of its turns."""

import torch
from torch import Tensor


def merge(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys out of the attention over each: Σ out · e^lse / Σ e^lse, and log Σ e^lse.

    out and more [B, S, N, D] in any dtype, lse and more_lse [B, S, N]; -inf is a set without keys. Computed and
    returned in float32, so that a ring loses nothing over its turns, or in float64 when the inputs are; the order of
    the two does not matter.
    """
    wide = torch.promote_types(out.dtype, torch.float32)
    lse, more_lse = lse.to(wide), more_lse.to(wide)
    total = torch.logaddexp(lse, more_lse)
    # Without any key -inf - -inf would be NaN.
    base = total.masked_fill(total == -torch.inf, 0)
    merged = out.to(wide) * (lse - base).exp().unsqueeze(-1)
    return merged.addcmul_(more.to(wide), (more_lse - base).exp().unsqueeze(-1)), total
