"""torch's own attention behind the attention door."""

import torch
from torch import Tensor

from videoserve_kernels.masks import seen_keys, with_sinks


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_bias: Tensor | None = None,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    block_mask: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """torch's scaled_dot_product_attention, which takes the strides of [B, S, N, D] without a copy."""
    masked = not (key_bias is None and key_lengths is None and window is None and block_mask is None)
    plain_causal = causal and not masked and q.shape[1] == k.shape[1]
    mask = None
    if masked or (causal and not plain_causal):
        seen = seen_keys(
            q.shape[1], k.shape[1], q.device,
            key_lengths=key_lengths, causal=causal, window=window, block_mask=block_mask,
        )  # fmt: skip
        mask = score_mask(seen, key_bias, q.dtype)
    if return_lse or sinks is not None:
        out, lse = sdpa_with_lse(q, k, v, mask, plain_causal)
        if sinks is not None:
            out, lse = with_sinks(out, lse, sinks)
        return (out, lse) if return_lse else out
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


def score_mask(seen: Tensor | None, key_bias: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores, [B or 1, N or 1, S or 1, L]; None for nothing."""
    mask = None if key_bias is None else key_bias[:, None, None, :].to(dtype)
    if seen is None:
        return mask
    allowed = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -torch.inf)
    return allowed if mask is None else mask + allowed
