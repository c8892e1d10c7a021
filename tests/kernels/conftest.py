"""What the kernel tests share: odd inputs and one table of tolerances."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}

Close = Callable[[Tensor, Tensor], None]
Noise = Callable[..., Tensor]


@pytest.fixture
def noise() -> Noise:
    """noise(*shape, dtype) -> the same normal numbers in every run."""
    generator = torch.Generator().manual_seed(7)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return make


@pytest.fixture
def close() -> Close:
    """close(got, truth): same shape, and within the tolerance of got's dtype of the float64 truth."""

    def check(got: Tensor, truth: Tensor) -> None:
        assert truth.dtype == torch.float64
        assert got.shape == truth.shape
        tolerance = TOLERANCE[got.dtype]
        torch.testing.assert_close(got.double(), truth, atol=tolerance, rtol=tolerance)

    return check
