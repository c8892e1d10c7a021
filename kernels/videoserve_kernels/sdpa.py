"""torch's own attention behind the attention door."""

import torch
from torch import Tensor

from videoserve_kernels.reference import seen_keys


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """torch's scaled_dot_product_attention, which takes the strides of [B, S, N, D] without a copy."""
    plain_causal = causal and key_bias is None and key_lengths is None and q.shape[1] == k.shape[1]
    mask = None if plain_causal else score_mask(q, k, key_bias, key_lengths, causal)
    if return_lse:
        return sdpa_with_lse(q, k, v, mask, plain_causal)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        attn_mask=mask, is_causal=plain_causal, enable_gqa=q.shape[2] != k.shape[2],
    )  # fmt: skip
    return out.transpose(1, 2)


def sdpa_with_lse(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """The operator behind scaled_dot_product_attention on a CPU, which has the log-sum-exp at hand."""
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], dim=2) for t in (k, v))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, attn_mask=mask
    )
    if mask is not None:
        # It reports 0 for a query that sees no key.
        lse = lse.masked_fill((mask == -torch.inf).all(dim=-1), -torch.inf)
    return out.transpose(1, 2), lse.transpose(1, 2)


def score_mask(
    q: Tensor, k: Tensor, key_bias: Tensor | None, key_lengths: Tensor | None, causal: bool
) -> Tensor | None:
    """What is added to the scores, [B or 1, 1, S or 1, L] in q's dtype; None for nothing."""
    mask = None if key_bias is None else key_bias[:, None, None, :].to(q.dtype)
    seen = seen_keys(q.shape[1], k.shape[1], key_lengths, causal, q.device)
    if seen is None:
        return mask
    allowed = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, -torch.inf)[:, None]
    return allowed if mask is None else mask + allowed
