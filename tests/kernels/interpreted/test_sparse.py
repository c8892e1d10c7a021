"""The kernels of sparse models against the float64 formulas: names of any number, parts, streams, poison."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import sparse_kernel, streams_kernel
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.mixing import Mixing
from videoserve_kernels.sparse import sparse_attention
from videoserve_kernels.streams import close_streams, open_streams

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
@pytest.mark.parametrize(("heads", "channels", "far"), [(3, 12, None), (4, 32, 0), (17, 64, 70), (2, 300, 33)])
def test_attention_equals_the_formula(
    heads: int,
    channels: int,
    far: int | None,
    dtype: torch.dtype,
    noise: Noise,
    close: Close,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse_kernel, "PART", 32)
    q, near, sinks = noise(5, heads, channels, dtype=dtype), noise(40, channels, dtype=dtype), noise(heads)
    at = names(5, 37, 40, seed=1)
    pools: list[Tensor] = []
    if far is not None:
        # The last token sees nothing far off.
        far_at = names(5, max(far, 1), 90, seed=2)[:, :far]
        far_at[4] = -1
        pools = [noise(90, channels, dtype=dtype), far_at]
    truth = sparse_attention(
        q.double(), near.double(), at, *(p.double() if p.is_floating_point() else p for p in pools),
        sinks=sinks.double(), backend="reference",
    )  # fmt: skip
    close(sparse_attention(q, near, at, *pools, sinks=sinks, backend="triton"), truth)


def test_what_is_not_named_may_hold_anything(noise: Noise) -> None:
    q, near, far, sinks = noise(4, 2, 16), noise(6, 16), noise(5, 16), noise(2)
    at, far_at = torch.tensor([[3, 5, -1]] * 4), torch.tensor([[2, -1]] * 4)
    expected = sparse_attention(q, near, at, far, far_at, sinks=sinks, backend="triton")
    near[[0, 1, 2, 4]] = torch.nan
    far[[0, 1, 3, 4]] = torch.inf
    assert torch.equal(sparse_attention(q, near, at, far, far_at, sinks=sinks, backend="triton"), expected)


def test_more_names_in_the_batch_change_no_bit(noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_kernel, "PART", 32)
    q, near, far, sinks = noise(2, 2, 16), noise(60, 16), noise(60, 16), noise(2)
    at, far_at = names(2, 20, 60, seed=1), names(2, 40, 60, seed=2)
    expected = sparse_attention(q, near, at, far, far_at, sinks=sinks, backend="triton")
    wider, further = (torch.nn.functional.pad(t, (0, n), value=-1) for t, n in ((at, 30), (far_at, 90)))
    assert torch.equal(sparse_attention(q, near, wider, far, further, sinks=sinks, backend="triton"), expected)


def test_no_tokens_and_what_cannot_be_taken(noise: Noise) -> None:
    none = torch.empty(0, 4, dtype=torch.int64)
    assert sparse_attention(noise(0, 2, 8), noise(6, 8), none, sinks=noise(2), backend="triton").shape == (0, 2, 8)
    with pytest.raises(BackendUnavailableError, match="up to 512 channels a head, not 600"):
        sparse_attention(noise(0, 2, 600), noise(6, 600), none, sinks=noise(2), backend="triton")
    with pytest.raises(BackendUnavailableError, match=r"one type, not torch\.float32, torch\.bfloat16"):
        sparse_attention(noise(0, 2, 8), noise(6, 8, dtype=torch.bfloat16), none, sinks=noise(2), backend="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "channels"), [(1, 5), (3, 40), (4, 130)])
def test_streams_equal_the_formula(
    count: int, channels: int, dtype: torch.dtype, noise: Noise, close: Close, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_kernel, "CHANNELS", 64)
    # A slice of something wider.
    streams, out = noise(5, count, channels + 3, dtype=dtype)[..., :channels], noise(5, channels, dtype=dtype)
    mixed = (2 + count) * count
    weights = Mixing(0.3 * noise(mixed, count * channels), noise(mixed), 1 + noise(3).abs())
    doubled = Mixing(*(tensor.double() for tensor in weights))
    options = {"rounds": 20, "eps": 1e-6, "norm_eps": 1e-6}
    truth = open_streams(streams.double(), doubled, **options, backend="reference")
    x, post, comb = open_streams(streams, weights, **options, backend="triton")
    assert (x.dtype, post.dtype, comb.dtype) == (dtype, torch.float32, torch.float32)
    for got, true in zip((x, post, comb), truth, strict=True):
        close(got, true)
    closed = close_streams(out.double(), streams.double(), *truth[1:], backend="reference")
    close(close_streams(out, streams, post, comb, backend="triton"), closed)


def test_no_streams_and_too_many(noise: Noise) -> None:
    weights = Mixing(noise(8, 20), noise(8), noise(3))
    x, post, comb = open_streams(noise(0, 2, 10), weights, rounds=2, eps=0.0, norm_eps=0.0, backend="triton")
    assert (x.shape, post.shape, comb.shape) == ((0, 10), (0, 2), (0, 2, 2))
    assert close_streams(x, noise(0, 2, 10), post, comb, backend="triton").shape == (0, 2, 10)
    with pytest.raises(BackendUnavailableError, match="up to 8 streams, not 9"):
        open_streams(noise(1, 9, 10), weights, rounds=2, eps=0.0, norm_eps=0.0, backend="triton")
