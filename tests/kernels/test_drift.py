"""The sums of drift against a loop in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.drift import drift

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 7, 13), (2, 0, 8), (0, 3, 8)])
def test_equals_the_sums_written_out(backend: str, masked: bool, shape: tuple[int, ...], noise: Fixture) -> None:
    a, b = noise(*shape), noise(*shape)
    mask = noise(*shape[:2]) > 0 if masked else None
    expected = torch.zeros(shape[0], 3, dtype=torch.float64)
    for row in range(shape[0]):
        for at in range(shape[1]):
            if mask is None or mask[row, at]:
                x, y = a[row, at].double(), b[row, at].double()
                expected[row] += torch.tensor([float((x - y).abs().sum()), float(y.abs().sum()), shape[2]])
    if mask is not None:
        a[~mask] = torch.nan
    got = drift(a, b, mask=mask, backend=backend)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-6)


def test_sums_of_shards_add_up_and_bfloat16_is_summed_in_float32(noise: Fixture) -> None:
    a, b = noise(1, 300, 64, dtype=torch.bfloat16), noise(1, 300, 64, dtype=torch.bfloat16)
    parts = sum(drift(x, y) for x, y in zip(a.split(77, dim=1), b.split(77, dim=1), strict=True))
    torch.testing.assert_close(parts, drift(a, b), rtol=1e-6, atol=0)
    torch.testing.assert_close(drift(a, b), drift(a.double(), b.double(), backend="reference").float())
