"""xformers behind the attention door: for cards where its kernels are the better ones."""

from typing import Any

import torch
from torch import Tensor
from xformers.ops import fmha

from videoserve_kernels.masks import with_sinks


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    **absent: None,
) -> Tensor | tuple[Tensor, Tensor]:
    """attend() by xformers; without key_bias, key_lengths and block_mask."""
    mask = causal_mask(window) if causal else None
    grouped = by_key_head(q, k, v) if q.shape[2] != k.shape[2] else (q, k, v)
    if not return_lse and sinks is None:
        out: Tensor = fmha.memory_efficient_attention(*grouped, attn_bias=mask)
        return out.reshape(q.shape)
    out, sums = fmha.memory_efficient_attention_forward_requires_grad(*grouped, attn_bias=mask)
    # [B, N, S] or [B, M, N/M, S], where S may be padded.
    lse = sums.reshape(q.shape[0], q.shape[2], -1)[..., : q.shape[1]].transpose(1, 2)
    out = out.reshape(q.shape)
    if sinks is not None:
        out, lse = with_sinks(out, lse, sinks)
    return (out, lse) if return_lse else out


def causal_mask(window: int | None) -> Any:
    """The last query stands at the last key."""
    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask()
    return mask if window is None else mask.make_local_attention(window)


def by_key_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Five axes [B, S, M, N/M, D]: the heads of a group see one key head, which is not copied."""
    heads = q.shape[2] // k.shape[2]
    wide = (-1, -1, -1, heads, -1)
    return torch.unflatten(q, 2, (-1, heads)), k.unsqueeze(3).expand(wide), v.unsqueeze(3).expand(wide)
