"""Which keys a query sees, and what stands beside them in its softmax."""

from typing import TypedDict

import torch
from torch import Tensor

# Queries and keys on the side of one block of a block mask: what the tiles of our kernel divide.
MASK_BLOCK = 128


class PagedMasks(TypedDict, total=False):
    """The options of attention over a paged cache; what they mean stands at its door."""

    window: int | None
    sinks: Tensor | None


class Masks(PagedMasks, total=False):
    """The options of the attention door; what they mean stands there."""

    key_bias: Tensor | None
    key_lengths: Tensor | None
    causal: bool
    block_mask: Tensor | None


def seen_keys(
    queries: int,
    keys: int,
    device: torch.device,
    *,
    key_lengths: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    block_mask: Tensor | None = None,
) -> Tensor | None:
    """Which key each query sees, bool [B or 1, N or 1, S or 1, L]; None when each sees all."""
    if key_lengths is None and not causal and window is None and block_mask is None:
        return None
    key = torch.arange(keys, device=device)
    # Positions are counted from the ends: the last query stands at the last key.
    query = torch.arange(queries, device=device)[:, None] + keys - queries
    limits = []
    if key_lengths is not None:
        limits.append((key < key_lengths[:, None])[:, None, None])
    if causal:
        limits.append((key <= query)[None, None])
    if window is not None:
        limits.append(((key > query - window) & (key < query + window))[None, None])
    if block_mask is not None:
        spread = block_mask.repeat_interleave(MASK_BLOCK, dim=2).repeat_interleave(MASK_BLOCK, dim=3)
        limits.append(spread[:, :, :queries, :keys])
    seen = None
    for limit in limits:
        seen = limit if seen is None else seen & limit
    return seen


def with_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Attention whose softmax has a sink beside the keys, out of attention without: out · e^lse / (e^lse + e^sink).

    out [B, S, N, D], lse [B, S, N], sinks [N]; returns both again.
    """
    sinks = sinks.to(lse.dtype)
    return out * (lse - sinks).sigmoid().unsqueeze(-1).to(out.dtype), torch.logaddexp(lse, sinks)


def blocks_in_turn(block_mask: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of a block mask [..., Q, K] its seen blocks first, int32 [..., Q, K], and how many, [..., Q]."""
    order = block_mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return order.to(torch.int32), block_mask.sum(dim=-1, dtype=torch.int32)
