"""Residual streams on a CPU against the formulas in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.mixing import Mixing
from videoserve_kernels.streams import close_streams, join_streams, open_streams

Noise = Callable[..., Tensor]
Close = Callable[..., None]


def mixing(noise: Noise, streams: int, channels: int, count: int, scales: int) -> Mixing:
    return Mixing(0.3 * noise(count, streams * channels), noise(count), 1 + noise(scales).abs())


def doubled(weights: Mixing) -> Mixing:
    return Mixing(*(tensor.double() for tensor in weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [2, 4])
def test_streams_open_and_close_as_the_formula_says(count: int, dtype: torch.dtype, noise: Noise, close: Close) -> None:
    streams, out = noise(5, count, 9, dtype=dtype), noise(5, 9, dtype=dtype)
    weights = mixing(noise, count, 9, (2 + count) * count, 3)
    options = {"rounds": 20, "eps": 1e-6, "norm_eps": 1e-6}
    truth = open_streams(streams.double(), doubled(weights), **options, backend="reference")
    x, post, comb = open_streams(streams, weights, **options)
    assert (x.dtype, post.dtype, comb.dtype) == (dtype, torch.float32, torch.float32)
    for got, true in zip((x, post, comb), truth, strict=True):
        close(got, true)
    closed = close_streams(out.double(), streams.double(), *truth[1:], backend="reference")
    close(close_streams(out, streams, post, comb), closed)


def test_what_comes_back_neither_grows_nor_shrinks(noise: Noise) -> None:
    weights = Mixing(0.1 * noise(24, 36), noise(24), torch.ones(3))
    comb = open_streams(noise(7, 4, 9), weights, rounds=20, eps=1e-6, norm_eps=1e-6)[2]
    ones = torch.ones(7, 4)
    torch.testing.assert_close(comb.sum(dim=1), ones, atol=1e-4, rtol=0)
    torch.testing.assert_close(comb.sum(dim=2), ones, atol=1e-3, rtol=0)
    assert (comb - comb.transpose(1, 2)).abs().max() > 0.05


def test_streams_are_mixed_along_the_first_axis_of_comb(noise: Noise) -> None:
    streams, comb = noise(1, 2, 3), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])
    for backend in ("torch", "reference"):
        mixed = close_streams(torch.zeros(1, 3), streams, torch.ones(1, 2), comb, backend=backend)
        torch.testing.assert_close(mixed, torch.stack((torch.zeros(1, 3), streams[:, 0]), dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_streams_join_as_the_formula_says(dtype: torch.dtype, noise: Noise, close: Close) -> None:
    streams, weights = noise(5, 4, 9, dtype=dtype), mixing(noise, 4, 9, 4, 1)
    truth = join_streams(streams.double(), doubled(weights), eps=1e-6, norm_eps=1e-6, backend="reference")
    close(join_streams(streams, weights, eps=1e-6, norm_eps=1e-6), truth)
