"""Which few of many compressed entries a token reads: the lightning indexer's choice."""

import torch
from torch import Tensor

from videoserve_kernels import reference_sparse
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.triton_gate import no_triton

# A program holds the queries of all heads of a token.
LARGEST_HEADS = 8192


def top_entries(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    places: Tensor,
    rows: Tensor,
    seen: Tensor,
    *,
    count: int,
    backend: str | None = None,
) -> Tensor:
    """The `count` entries with the largest Σ_h w_h · relu(q_h · k_e) among the first `seen` of a token's sequence.

    q [T, H, D], weights float32 [T, H], keys [L, D] of one dtype with q, places int64 [B, E] of each sequence's entries
    among the keys, rows and seen int [T]. Returns entry numbers, int64 [T, count] in no order, -1 where there are
    fewer. Tokens of one sequence stand together.
    """
    return pick("top_entries", BACKENDS, backend, q, weights, keys, places, rows, seen, count=count)


def in_torch(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> Tensor:
    """One product for the tokens of a sequence; scores in float32."""
    chosen = torch.full((len(q), count), -1, dtype=torch.int64, device=q.device)
    first = 0
    ours, counts = torch.unique_consecutive(rows, return_counts=True)
    for row, tokens in zip(ours.tolist(), counts.tolist(), strict=True):
        part = slice(first, first + tokens)
        first += tokens
        width = int(seen[part].max())
        if not width:
            continue
        k = keys.index_select(0, places[row, :width])
        # The last token sees most: what the others do not see yet must not be chosen.
        scores = torch.einsum("thd,ed->the", q[part].float(), k.float()).relu_()
        scores = (weights[part, None] @ scores)[:, 0]  # [S, E]
        later = torch.arange(width, device=q.device) >= seen[part, None]
        best = scores.masked_fill_(later, -torch.inf).topk(min(count, width), sorted=False).indices
        chosen[part, : best.shape[1]] = best.masked_fill(best >= seen[part, None], -1)
    return chosen


def in_triton(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> Tensor:
    """Our Triton kernel, for all sequences at once."""
    from videoserve_kernels import indexer_kernel

    return indexer_kernel.top_entries(q, weights, keys, places, rows, seen, count=count)


def no_kernel(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> str | None:
    if why := no_triton(q, weights, keys, places, rows, seen):
        return why
    if any(tensor.stride(-1) != 1 for tensor in (q, weights, keys, places, rows, seen)):
        return "it takes contiguous channels and places only"
    if q.shape[1] * q.shape[2] > LARGEST_HEADS:
        return f"it takes up to {LARGEST_HEADS} channels in all heads, not {q.shape[1] * q.shape[2]}"
    if q.dtype != keys.dtype:
        return f"it takes one type, not {q.dtype} and {keys.dtype}"
    return None


def anywhere(
    q: Tensor, weights: Tensor, keys: Tensor, places: Tensor, rows: Tensor, seen: Tensor, *, count: int
) -> str | None:
    return None


BACKENDS = (
    Backend(name="triton", fn=in_triton, why_not=no_kernel),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference_sparse.top_entries, why_not=anywhere),
)
