"""Compressed entries on a CPU against the formula in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.compress import compress

Noise = Callable[..., Tensor]
Close = Callable[..., None]
MEMBERS = torch.tensor([[0, 1, 2], [3, 4, 5], [9, 7, 8]])
BEFORE = torch.tensor([[-1, -1, -1], [0, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before", [None, BEFORE])
def test_equals_the_formula(before: Tensor | None, dtype: torch.dtype, noise: Noise, close: Close) -> None:
    values, gates, bias = noise(10, 14, dtype=dtype), noise(10, 14, dtype=dtype), noise(3, 14)
    truth = compress(values.double(), gates.double(), bias.double(), MEMBERS, before, backend="reference")
    close(compress(values, gates, bias, MEMBERS, before), truth)


def test_the_first_group_of_a_sequence_is_its_own_rows_alone(noise: Noise) -> None:
    values, gates, bias = noise(10, 14), noise(10, 14), noise(3, 14)
    values[0], gates[0] = torch.nan, torch.nan
    first = compress(values, gates, bias, torch.tensor([[4, 5, 6]]), torch.full((1, 3), -1))
    alone = compress(values[:, 7:], gates[:, 7:], bias[:, 7:], torch.tensor([[4, 5, 6]]))
    torch.testing.assert_close(first, alone)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_no_groups(backend: str, noise: Noise) -> None:
    none = torch.empty(0, 3, dtype=torch.int64)
    assert compress(noise(4, 14), noise(4, 14), noise(3, 14), none, backend=backend).shape == (0, 14)
    assert compress(noise(4, 14), noise(4, 14), noise(3, 14), none, none, backend=backend).shape == (0, 7)
