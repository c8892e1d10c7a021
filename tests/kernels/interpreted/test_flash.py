"""Flash attention against the float64 formula: tiles cut off at every edge, and the log-sum-exp."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import attend

Fixture = Callable[..., Tensor]
Close = Callable[..., None]
# Batch, queries, keys, heads, key heads, channels.
SHAPES = [
    (1, 1, 1, 1, 1, 32),
    (2, 37, 70, 2, 1, 64),
    (1, 130, 129, 1, 1, 32),
    (1, 64, 64, 4, 2, 128),
    (2, 5, 0, 2, 2, 32),
]


def inputs(noise: Fixture, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    batch, queries, keys, heads, key_heads, channels = shape
    q = noise(batch, queries, heads, channels, dtype=dtype)
    return q, noise(batch, keys, key_heads, channels, dtype=dtype), noise(batch, keys, key_heads, channels, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(
    shape: tuple[int, ...], causal: bool, dtype: torch.dtype, noise: Fixture, close: Close
) -> None:
    q, k, v = inputs(noise, shape, dtype)
    out, lse = attend(q, k, v, causal=causal, return_lse=True, backend="flash")
    truth, sums = reference.attend(q.double(), k.double(), v.double(), causal=causal, return_lse=True)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    close(out, truth)
    close(lse, sums)
    assert torch.equal(out, attend(q, k, v, causal=causal, backend="flash"))


def test_padding_is_never_read(noise: Fixture, close: Close) -> None:
    q, k, v = inputs(noise, (4, 33, 75, 2, 2, 32), torch.float32)
    lengths = torch.tensor([75, 64, 1, 0])
    bias = noise(4, 75)
    truth, sums = reference.attend(
        q.double(), k.double(), v.double(), key_bias=bias.double(), key_lengths=lengths, return_lse=True
    )
    for row, length in enumerate(lengths.tolist()):
        k[row, length:], v[row, length:], bias[row, length:] = torch.nan, torch.nan, torch.nan
    out, lse = attend(q, k, v, key_bias=bias, key_lengths=lengths, return_lse=True, backend="flash")
    close(out, truth)
    close(lse, sums)
    assert (out[3] == 0).all()
    assert (lse[3] == -torch.inf).all()


def test_a_key_with_bias_minus_infinity_is_taken_out(noise: Fixture, close: Close) -> None:
    q, k, v = inputs(noise, (1, 9, 40, 2, 2, 32), torch.float32)
    # Every second number of a larger tensor: a bias need not be contiguous.
    bias = torch.full((1, 80), torch.nan)[:, ::2]
    bias[:, :33], bias[:, 33:] = -torch.inf, 0
    truth = reference.attend(q.double(), k[:, 33:].double(), v[:, 33:].double())
    close(attend(q, k, v, key_bias=bias, backend="flash"), truth)


def test_strides_of_a_joined_projection_and_beyond_32_bits(noise: Fixture, close: Close) -> None:
    joined = noise(2, 21, 3 * 2 * 32, dtype=torch.float16)
    q, k, v = (torch.unflatten(part, -1, (2, 32)) for part in joined.chunk(3, dim=-1))
    truth = reference.attend(q.double(), k.double(), v.double())
    # numpy's zeros take memory only where they are touched: the rows of the two clips.
    far = torch.from_numpy(np.zeros(2**31 + 21 * 64 + 64, dtype=np.float16))
    apart = far.as_strided((2, 21, 2, 32), (2**31 + 64, 64, 32, 1))
    apart.copy_(k)
    out = attend(q, apart, v, backend="flash")
    torch.testing.assert_close(out.double(), truth, atol=4e-3, rtol=4e-3)


def test_what_is_not_finite_comes_through(noise: Fixture) -> None:
    q, k, v = inputs(noise, (1, 40, 40, 2, 2, 32), torch.float32)
    v[0, 2, 0] = torch.nan
    q[0, 7, 1] = torch.inf
    out, lse = attend(q, k, v, return_lse=True, backend="flash")
    assert out[:, :, 0].isnan().all()
    assert out[0, 7, 1].isnan().all()
    assert lse[0, 7, 1].isnan()
    q[0, 7, 1] = torch.nan
    assert attend(q, k, v, return_lse=True, backend="flash")[1][0, 7, 1].isnan()
    assert out[0, 8, 1].isfinite().all()
