"""The low-rank addition on a CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.low_rank import add_low_rank

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (6, 13, 9, 4), (0, 8, 8, 4), (4, 8, 8, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_weight_with_the_product_added(
    backend: str, shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    rows, inputs, outputs, rank = shape
    x, y = noise(2, rows, inputs, dtype=dtype), noise(2, rows, outputs, dtype=dtype)
    a, b = noise(rank, inputs, dtype=dtype) / inputs**0.5, noise(outputs, rank, dtype=dtype) / 2
    truth = y.double() + x.double() @ (b.double() @ a.double()).t()
    assert add_low_rank(y, x, a, b, backend=backend) is y
    close(y, truth)


def test_the_kernel_says_why_it_cannot_run(noise: Fixture) -> None:
    x, y = noise(2, 8), noise(2, 8)
    with pytest.raises(BackendUnavailableError, match="a tensor is on cpu"):
        add_low_rank(y, x, noise(4, 8), noise(8, 4), backend="triton")
