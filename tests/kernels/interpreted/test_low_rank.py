"""The low-rank addition against the float64 formula, cut off at every edge."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.low_rank import add_low_rank

Fixture = Callable[..., Tensor]
# Rows, inputs, outputs, rank.
SHAPES = [(1, 1, 1, 1), (70, 65, 130, 5), (3, 128, 64, 16), (0, 8, 8, 4), (4, 8, 8, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(
    shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    rows, inputs, outputs, rank = shape
    x, y = noise(rows, inputs, dtype=dtype), noise(rows, outputs, dtype=dtype)
    a, b = noise(rank, inputs, dtype=dtype) / inputs**0.5, noise(outputs, rank, dtype=dtype) / 2
    truth = reference.add_low_rank(y.double(), x.double(), a.double(), b.double())
    assert add_low_rank(y, x, a, b, backend="triton") is y
    close(y, truth)


def test_padding_of_a_slot_changes_nothing(noise: Fixture) -> None:
    x, y, a, b = noise(2, 5, 24), noise(2, 5, 20), noise(3, 24), noise(20, 3)
    padded_a, padded_b = torch.zeros(8, 24), torch.zeros(20, 8)
    padded_a[:3], padded_b[:, :3] = a, b
    expected = add_low_rank(y.clone(), x, a, b, backend="torch")
    torch.testing.assert_close(add_low_rank(y, x, padded_a, padded_b, backend="triton"), expected, atol=2e-5, rtol=2e-5)


def test_nan_stays_in_its_row(noise: Fixture) -> None:
    x, y = noise(4, 8), noise(4, 8)
    x[2, 1] = torch.nan
    out = add_low_rank(y, x, noise(4, 8), noise(8, 4), backend="triton")
    assert out[2].isnan().all()
    assert out.isnan().sum() == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_has_its_own_slot_with_the_bits_of_its_slot_alone(
    dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    rows, inputs, outputs, rank = 70, 65, 130, 5
    x, y = noise(rows, inputs, dtype=dtype), noise(rows, outputs, dtype=dtype)
    a, b = noise(4, rank, inputs, dtype=dtype) / inputs**0.5, noise(4, outputs, rank, dtype=dtype) / 2
    # Slot 2 is in no tile, the second tile has none at all.
    slots = torch.where(torch.arange(rows) < 64, torch.tensor([-1, 0, 1, 3])[torch.arange(rows) % 4], -1).int()
    a[2], b[2] = torch.nan, torch.nan
    before = y.clone()
    assert add_low_rank(y, x, a, b, slots=slots, backend="triton") is y
    close(y, reference.add_low_rank(before.double(), x.double(), a.double(), b.double(), slots=slots))
    assert torch.equal(y[slots < 0], before[slots < 0])
    for slot in (0, 1, 3):
        alone = add_low_rank(before.clone(), x, a[slot], b[slot], backend="triton")
        assert torch.equal(y[slots == slot], alone[slots == slot])
