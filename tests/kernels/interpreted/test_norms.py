"""Norms, rotary embedding and modulation against the float64 formulas."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.modulate import gated_residual, modulated_norm
from videoserve_kernels.norm import add_rms_norm, rms_norm
from videoserve_kernels.norm_rope import rms_norm_rotate
from videoserve_kernels.rope import rotate

Fixture = Callable[..., Tensor]
Close = Callable[..., None]


def turns_of(tokens: int, head_dim: int, noise: Fixture) -> Tensor:
    angles = noise(tokens, head_dim // 2, dtype=torch.float64) * 9
    return torch.polar(torch.ones_like(angles), angles)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 13), (0, 5, 8), (3, 2, 4, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Close) -> None:
    x, weight = noise(*shape, dtype=dtype) * 3 + 1, noise(shape[-1])
    got = rms_norm(x, weight, eps=1e-6, backend="triton")
    assert got.dtype == dtype
    close(got, reference.rms_norm(x.double(), weight.double(), eps=1e-6))


@pytest.mark.parametrize("shape", [(1, 1), (2, 7, 13), (0, 5, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_add_rms_norm(shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Close) -> None:
    x, residual, weight = noise(*shape, dtype=dtype) * 3, noise(*shape, dtype=dtype), noise(shape[-1])
    normal, total = add_rms_norm(x, residual, weight, eps=1e-6, backend="triton")
    assert normal.dtype == dtype
    assert torch.equal(total, x + residual)
    close(normal, reference.rms_norm(total.double(), weight.double(), eps=1e-6))


@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "head_dim"), [(1, 1, 1, 2), (2, 3, 3, 12), (1, 2, 5, 64), (2, 0, 2, 8)]
)
@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_then_rotary(
    batch: int, tokens: int, heads: int, head_dim: int, halves: bool, dtype: torch.dtype, noise: Fixture, close: Close
) -> None:
    channels = heads * head_dim
    # A third of a joined projection, as a block has it.
    x = noise(batch, tokens, 3 * channels, dtype=dtype).chunk(3, dim=-1)[1]
    weight, turns = noise(channels), turns_of(tokens, head_dim, noise)
    # Over all heads, and over each.
    for gain in (weight, weight[:head_dim]):
        got = rms_norm_rotate(x, gain, turns.to(torch.complex64), eps=1e-6, halves=halves, backend="triton")
        assert got.dtype == dtype
        close(got, reference.rms_norm_rotate(x.double(), gain.double(), turns, eps=1e-6, halves=halves))
    split = torch.unflatten(x, -1, (heads, head_dim))
    got = rotate(split, turns.to(torch.complex64), halves=halves, backend="triton")
    close(got, reference.rotate(split.double(), turns, halves=halves))


CASES = [(1, 1, 1, 3, [0]), (2, 3, 5, 13, [0, 1, 1]), (3, 4, 2, 8, [2, 0, 1, 1]), (2, 2, 0, 8, [0, 1])]


@pytest.mark.parametrize(("batch", "frames", "pixels", "channels", "index"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_modulation(
    batch: int,
    frames: int,
    pixels: int,
    channels: int,
    index: list[int],
    dtype: torch.dtype,
    noise: Fixture,
    close: Close,
) -> None:
    x, y = (noise(batch, frames * pixels, channels, dtype=dtype) * 2 + 5 for _ in range(2))
    # Slices of one table, as a block has them.
    shift, scale, gate = noise(batch, max(index) + 1, 3, channels).unbind(dim=2)
    frame_index = torch.tensor(index)
    normal = modulated_norm(x, shift, scale, frame_index, eps=1e-6, backend="triton")
    total = gated_residual(x, y, gate, frame_index, backend="triton")
    assert normal.dtype == total.dtype == dtype
    close(normal, reference.modulated_norm(x.double(), shift.double(), scale.double(), frame_index, eps=1e-6))
    close(total, reference.gated_residual(x.double(), y.double(), gate.double(), frame_index))


def test_nan_stays_in_its_token(noise: Fixture) -> None:
    x, table, index = noise(1, 3, 8), noise(1, 1, 8), torch.zeros(1, dtype=torch.int64)
    x[0, 1, 2] = torch.nan
    turns = turns_of(3, 4, noise).to(torch.complex64)
    for out in (
        rms_norm(x, torch.ones(8), eps=1e-6, backend="triton"),
        rms_norm_rotate(x, torch.ones(8), turns, eps=1e-6, backend="triton").flatten(2),
        modulated_norm(x, table, table, index, eps=1e-6, backend="triton"),
    ):
        assert out[0, 1].isnan().all()
        assert out[0, 0::2].isfinite().all()
    assert gated_residual(x, x, table, index, backend="triton").isnan().sum() == 1


def test_strides_beyond_32_bits(noise: Fixture) -> None:
    x, weight, table = noise(2, 3, 8, dtype=torch.float16), noise(8), noise(2, 1, 8)
    # numpy's zeros take memory only where they are touched.
    far = torch.from_numpy(np.zeros(2**31 + 24, dtype=np.float16)).as_strided(x.shape, (2**31, 8, 1))
    far.copy_(x)
    index, turns = torch.zeros(1, dtype=torch.int64), turns_of(3, 4, noise).to(torch.complex64)
    for got, expected in (
        (rms_norm_rotate(far, weight, turns, eps=1e-6, backend="triton"),
         rms_norm_rotate(x, weight, turns, eps=1e-6, backend="torch")),
        (modulated_norm(far, table, table, index, eps=1e-6, backend="triton"),
         modulated_norm(x, table, table, index, eps=1e-6, backend="torch")),
        (gated_residual(far, far, table, index, backend="triton"),
         gated_residual(x, x, table, index, backend="torch")),
    ):  # fmt: skip
        torch.testing.assert_close(got, expected, atol=4e-3, rtol=4e-3)
