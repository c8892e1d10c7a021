"""Attention over a paged cache, and writing into it: decoding, and batches of a few new tokens a sequence.

A batch is a list of tokens, of any sequences and any number of each. Token t belongs to sequence rows[t] and stands at
positions[t]; the batch is padded with tokens at position -1, which see nothing and are stored nowhere.
"""

from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import Attended, attend
from videoserve_kernels.backend import Backend, pick
from videoserve_kernels.masks import PagedMasks
from videoserve_kernels.paged_runs import Runs, attend_runs
from videoserve_kernels.pages import Pages
from videoserve_kernels.triton_gate import no_triton

# A program holds the channels of one key in its registers.
LARGEST_HEAD = 512


@overload
def paged_attention(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    return_lse: Literal[False] = ...,
    runs: Runs | None = ...,
    backend: str | None = ...,
    **masks: Unpack[PagedMasks],
) -> Tensor: ...


@overload
def paged_attention(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    return_lse: Literal[True],
    runs: Runs | None = ...,
    backend: str | None = ...,
    **masks: Unpack[PagedMasks],
) -> tuple[Tensor, Tensor]: ...


def paged_attention(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    runs: Runs | None = None,
    backend: str | None = None,
    **options: Any,
) -> Attended:
    """softmax(q kᵀ / √D) v over the positions of its sequence that a token sees: its own and all before.

    q [T, N, D]; pages with M key heads, where M divides N; rows and positions int32 [T]. `window` leaves a token its
    last `window` positions; sinks float32 [N] stand beside a head's keys. A pool of compressed entries is a Pages of
    its own, whose positions are the last entry each token sees. Returns [T, N, D] in q's dtype and, with `return_lse`,
    the natural log-sum-exp float32 [T, N], which counts the sink; 0 and -inf (or the sink) for a padding token. A
    token's result has the same bits in any batch. `runs` are those of the batch (paged_runs.runs_of), found once for
    all layers: with them a CPU reads keys where they lie, if there is neither a window nor a sink.
    """
    if runs is not None and q.is_cpu and backend is None and not options:
        return attend_runs(q, pages, runs)
    return pick("paged_attention", ATTENTION, backend, q, pages, rows, positions, **options)


def store_kv(
    k: Tensor,
    v: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    slots: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Writes the keys and values of new tokens into their blocks.

    k and v [T, M, D] in the dtype of the pages, rows and positions int32 [T]; no two tokens at one position. `slots`
    int64 [T] is where each token lies in a row of all blocks, found once for all layers: a CPU then looks up no table.
    """
    if slots is not None and k.is_cpu and backend is None:
        pages.keys.flatten(0, 1).index_copy_(0, slots, k)
        pages.values.flatten(0, 1).index_copy_(0, slots, v)
        return
    pick("store_kv", STORE, backend, k, v, pages, rows, positions)


def in_torch(
    q: Tensor,
    pages: Pages,
    rows: Tensor,
    positions: Tensor,
    *,
    window: int | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Attended:
    """The attention door once a run of tokens, over keys put together from their blocks."""
    out = torch.zeros_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    lse[:] = -torch.inf if sinks is None else sinks
    for first, last, row, end in runs(rows.tolist(), positions.tolist()):
        # The first token's window begins here.
        start = 0 if window is None else max(end - (last - first) - window + 2, 0)
        k, v = (t[None] for t in reference.paged_keys(pages, row, start, end + 1))
        # One query alone sees all of them.
        options: dict[str, Any] = {"causal": last - first > 1, "window": window, "sinks": sinks}
        if return_lse:
            part, sums = attend(q[None, first:last], k, v, return_lse=True, **options)
            out[first:last], lse[first:last] = part[0], sums[0]
        else:
            out[first:last] = attend(q[None, first:last], k, v, **options)[0]
    return (out, lse) if return_lse else out


def runs(rows: list[int], positions: list[int]) -> list[tuple[int, int, int, int]]:
    """(first token, last + 1, sequence, last position) of each run of neighbours in one sequence, without padding."""
    found: list[tuple[int, int, int, int]] = []
    for token, (row, position) in enumerate(zip(rows, positions, strict=True)):
        if position < 0:
            continue
        if found and found[-1][1:] == (token, row, position - 1):
            found[-1] = (found[-1][0], token + 1, row, position)
        else:
            found.append((token, token + 1, row, position))
    return found


def anywhere(*tensors: Any, **options: Any) -> str | None:
    return None


def store_in_torch(k: Tensor, v: Tensor, pages: Pages, rows: Tensor, positions: Tensor) -> None:
    """One indexed assignment."""
    kept = positions >= 0
    at = positions[kept].long()
    blocks = pages.tables[rows[kept].long(), at // pages.size].long()
    pages.keys[blocks, at % pages.size] = k[kept]
    pages.values[blocks, at % pages.size] = v[kept]


def in_triton(q: Tensor, pages: Pages, rows: Tensor, positions: Tensor, **options: Any) -> Attended:
    """Our Triton kernel."""
    from videoserve_kernels import paged_kernel

    return paged_kernel.paged_attention(q, pages, rows, positions, **options)


def store_in_triton(k: Tensor, v: Tensor, pages: Pages, rows: Tensor, positions: Tensor) -> None:
    """Our Triton kernel."""
    from videoserve_kernels import paged_kernel

    paged_kernel.store_kv(k, v, pages, rows, positions)


def no_store(k: Tensor, v: Tensor, pages: Pages, rows: Tensor, positions: Tensor) -> str | None:
    if why := no_triton(k, v, *pages, rows, positions):
        return why
    if any(tensor.stride(-1) != 1 for tensor in (k, v, *pages, rows, positions)):
        return "it takes contiguous channels and tables only"
    return None


def no_attention(q: Tensor, pages: Pages, rows: Tensor, positions: Tensor, **options: Any) -> str | None:
    if why := no_store(q, q, pages, rows, positions):
        return why
    if q.shape[-1] > LARGEST_HEAD:
        return f"it takes up to {LARGEST_HEAD} channels a head, not {q.shape[-1]}"
    if len({q.dtype, pages.keys.dtype, pages.values.dtype}) != 1:
        return f"it takes one type, not {q.dtype}, {pages.keys.dtype} and {pages.values.dtype}"
    return None


ATTENTION = (
    Backend(name="triton", fn=in_triton, why_not=no_attention),
    Backend(name="torch", fn=in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.paged_attention, why_not=anywhere),
)
STORE = (
    Backend(name="triton", fn=store_in_triton, why_not=no_store),
    Backend(name="torch", fn=store_in_torch, why_not=anywhere),
    Backend(name="reference", fn=reference.store_kv, why_not=anywhere),
)
