"""Norms against the float64 formula."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.norm import add_rms_norm, layer_norm, rms_norm

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 13), (0, 5, 8), (3, 2, 4, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_equal_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    x = noise(*shape, dtype=dtype) * 3 + 1
    weight, bias = noise(shape[-1]), noise(shape[-1])
    wide = x.double(), weight.double(), bias.double()
    got = rms_norm(x, weight, eps=1e-6)
    assert got.dtype == dtype
    close(got, reference.rms_norm(wide[0], wide[1], eps=1e-6))
    close(layer_norm(x, weight, bias, eps=1e-6), reference.layer_norm(*wide, eps=1e-6))
    close(layer_norm(x, None, None, eps=1e-6), reference.layer_norm(wide[0], None, None, eps=1e-6))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_sum_and_its_norm(backend: str, noise: Fixture, close: Callable[..., None]) -> None:
    x, residual, weight = noise(2, 7, 13), noise(2, 7, 13), noise(13)
    normal, total = add_rms_norm(x, residual, weight, eps=1e-6, backend=backend)
    close(total, x.double() + residual.double())
    close(normal, reference.rms_norm(x.double() + residual.double(), weight.double(), eps=1e-6))


def test_a_zero_row_stays_zero_and_a_nan_stays_in_its_row(noise: Fixture) -> None:
    x = noise(3, 8)
    x[0] = 0
    x[1, 2] = torch.nan
    out = rms_norm(x, torch.ones(8), eps=1e-24)
    assert (out[0] == 0).all()
    assert out[1].isnan().all()
    assert out[2].isfinite().all()


def test_the_input_is_left_as_it_was(noise: Fixture) -> None:
    x = noise(4, 8)
    before = x.clone()
    rms_norm(x, torch.ones(8), eps=1e-6)
    layer_norm(x, None, None, eps=1e-6)
    assert torch.equal(x, before)
