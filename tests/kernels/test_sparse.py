"""Attention over entries that tokens name, on a CPU, against the formula in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import sparse
from videoserve_kernels.sparse import sparse_attention

Noise = Callable[..., Tensor]
Close = Callable[..., None]


def names(rows: int, width: int, pool: int, seed: int) -> Tensor:
    """Different places in each row, some of them none, the first one never."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.stack([torch.randperm(pool, generator=generator)[:width] for _ in range(rows)])
    gone = torch.rand(rows, width, generator=generator) < 0.4
    gone[:, 0] = False
    return at.masked_fill(gone, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("far", [None, 0, 7])
def test_equals_the_formula(
    far: int | None, dtype: torch.dtype, noise: Noise, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Five tokens at a time, so that the last piece is a part of one.
    monkeypatch.setattr(sparse, "GATHERED", 5 * (6 + (far or 0)) * 12)
    q, near, sinks = noise(13, 3, 12, dtype=dtype), noise(20, 12, dtype=dtype), noise(3)
    at = names(13, 6, 20, seed=1)
    pools = [] if far is None else [noise(9, 12, dtype=dtype), names(13, max(far, 1), 9, seed=2)[:, :far]]
    truth = sparse_attention(
        q.double(), near.double(), at, *(p.double() if p.is_floating_point() else p for p in pools),
        sinks=sinks.double(), backend="reference",
    )  # fmt: skip
    close(sparse_attention(q, near, at, *pools, sinks=sinks), truth)


def test_what_is_not_named_may_hold_anything(noise: Noise) -> None:
    q, near, far, sinks = noise(4, 2, 8), noise(6, 8), noise(5, 8), noise(2)
    at, far_at = torch.tensor([[3, 5, -1]] * 4), torch.tensor([[2, -1]] * 4)
    expected = sparse_attention(q, near, at, far, far_at, sinks=sinks)
    near[[0, 1, 2, 4]] = torch.nan
    far[[0, 1, 3, 4]] = torch.inf
    assert torch.equal(sparse_attention(q, near, at, far, far_at, sinks=sinks), expected)


def test_a_token_without_far_entries_reads_near_ones_alone(noise: Noise) -> None:
    q, near, sinks, at = noise(3, 2, 8), noise(6, 8), noise(2), names(3, 4, 6, seed=3)
    alone = sparse_attention(q, near, at, sinks=sinks)
    none = torch.full((3, 5), -1)
    torch.testing.assert_close(sparse_attention(q, near, at, noise(5, 8), none, sinks=sinks), alone)
    torch.testing.assert_close(sparse_attention(q, near, at, near[:0], none, sinks=sinks), alone)


def test_sinks_take_their_share(noise: Noise) -> None:
    q, near, at = noise(2, 2, 8), noise(6, 8), names(2, 4, 6, seed=4)
    large = sparse_attention(q, near, at, sinks=torch.full((2,), 200.0))
    assert large.abs().max() < 1e-30
    small = sparse_attention(q, near, at, sinks=torch.full((2,), -200.0))
    assert small.abs().max() > 0.1


def test_no_tokens(noise: Noise) -> None:
    none = torch.empty(0, 4, dtype=torch.int64)
    assert sparse_attention(noise(0, 2, 8), noise(6, 8), none, sinks=noise(2)).shape == (0, 2, 8)
