"""The sums of drift against the float64 formula, cut off at every edge."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.drift import drift

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 17, 300), (3, 40, 13), (2, 0, 8), (2, 3, 0)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(shape: tuple[int, ...], masked: bool, dtype: torch.dtype, noise: Fixture) -> None:
    a, b = noise(*shape, dtype=dtype), noise(*shape, dtype=dtype)
    mask = noise(*shape[:2]) > 0.3 if masked else None
    truth = reference.drift(a.double(), b.double(), mask=mask)
    if mask is not None:
        a[~mask], b[~mask] = torch.nan, torch.inf
    got = drift(a, b, mask=mask, backend="triton")
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), truth, atol=1e-5, rtol=2e-6)


def test_nan_comes_through_in_its_row_only(noise: Fixture) -> None:
    a, b = noise(2, 20, 5), noise(2, 20, 5)
    a[1, 18, 2] = torch.nan
    got = drift(a, b, backend="triton")
    assert got[0].isfinite().all()
    assert got[1, 0].isnan()
    assert got[1, 1:].isfinite().all()


def test_strides_beyond_32_bits(noise: Fixture) -> None:
    a, b = noise(2, 3, 4, dtype=torch.float16), noise(2, 3, 4, dtype=torch.float16)
    # numpy's zeros take memory only where they are touched.
    far = torch.from_numpy(np.zeros(2**31 + 12, dtype=np.float16)).as_strided(a.shape, (2**31, 4, 1))
    far.copy_(a)
    truth = reference.drift(a.double(), b.double())
    torch.testing.assert_close(drift(far, b, backend="triton").double(), truth, atol=1e-5, rtol=2e-6)
