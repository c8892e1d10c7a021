"""Paged attention on a CPU: keys are read where they lie, whenever the blocks of a sequence lie in a row."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from videoserve_kernels.merge import merge
from videoserve_kernels.pages import Pages
from videoserve_kernels.sdpa import sdpa_with_lse


class Run(NamedTuple):
    """Tokens first to last - 1 of a batch, consecutive ones of a sequence, whose last one sees `seen` keys.

    Those lie one after the other from slot `at` of the pool on, or else at `places`.
    """

    first: int
    last: int
    seen: int
    at: int
    places: Tensor | None


Runs = tuple[Run, ...]


def runs_of(
    tables: Sequence[Sequence[int]], rows: Sequence[int], positions: Sequence[int], block: int, device: torch.device
) -> Runs:
    """The runs of a batch without padding, found once for all layers of a model. `block` is the positions a block."""
    found: list[Run] = []
    first = 0
    for token in range(1, len(rows) + 1):
        if token < len(rows) and (rows[token], positions[token]) == (rows[token - 1], positions[token - 1] + 1):
            continue
        seen = positions[token - 1] + 1
        used = tables[rows[first]][: -(-seen // block)]
        places = None
        if any(after != before + 1 for before, after in pairwise(used)):
            starts = torch.tensor(used, device=device)[:, None] * block
            places = (starts + torch.arange(block, device=device)).flatten()[:seen]
        found.append(Run(first, token, seen, used[0] * block, places))
        first = token
    return tuple(found)


def attend_runs(q: Tensor, pages: Pages, runs: Runs) -> Tensor:
    """paged_attention() of a batch that consists of `runs`; q [T, N, D]; bits as in any batch."""
    out = torch.empty_like(q)
    keys, values = pages.keys.flatten(0, 1), pages.values.flatten(0, 1)  # [slots, M, D]
    for run in runs:
        if run.places is None:
            k, v = keys[run.at : run.at + run.seen], values[run.at : run.at + run.seen]
        else:
            k, v = keys.index_select(0, run.places), values.index_select(0, run.places)
        if run.last - run.first == 1:
            out[run.first] = one_query(q[run.first], k, v)
        else:
            out[run.first : run.last] = last_queries(q[run.first : run.last], k, v)
    return out


def one_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [N, D] over all of k and v [L, M, D]: the heads of a group stand where queries of a sequence would."""
    grouped = q.view(1, k.shape[1], -1, q.shape[1])  # [1, M, G, D]
    out = scaled_dot_product_attention(grouped, k.transpose(0, 1)[None], v.transpose(0, 1)[None])
    return out.reshape(q.shape)


def last_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [S, N, D] at the last S of k and v [L, M, D]: over what comes before all of them, over themselves, merged."""
    queries, heads, width = q.shape
    past, groups = len(k) - queries, heads // k.shape[1]
    own_k, own_v = k[past:][None], v[past:][None]
    if not past:
        attended = scaled_dot_product_attention(
            q[None].transpose(1, 2), own_k.transpose(1, 2), own_v.transpose(1, 2),
            is_causal=True, enable_gqa=groups > 1,
        )  # fmt: skip
        return attended[0].transpose(0, 1)
    out, lse = sdpa_with_lse(q[None], own_k, own_v, None, True)
    # Without a mask the queries of a group may stand in one row: no key is copied for them.
    grouped = q.view(queries, -1, groups, width).permute(1, 2, 0, 3).flatten(1, 2)  # [M, G·S, D]
    more, more_lse = sdpa_with_lse(grouped.transpose(0, 1)[None], k[:past][None], v[:past][None], None, False)
    more = torch.unflatten(more[0], 0, (groups, queries)).permute(1, 2, 0, 3).flatten(1, 2)  # [S, N, D]
    more_lse = torch.unflatten(more_lse[0], 0, (groups, queries)).permute(1, 2, 0).flatten(1, 2)
    return merge(out, lse, more[None], more_lse[None])[0][0]
