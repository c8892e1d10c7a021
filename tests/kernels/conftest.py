"""What the kernel tests share: odd inputs and one table of tolerances."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.pages import Pages

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


@pytest.fixture
def paged(noise: Noise) -> Callable[..., Pages]:
    """paged(lengths, size, heads, channels, dtype, filled) -> Pages of that many positions a sequence.

    Blocks in no order, of one pool; NaN where nothing was stored, and a table that points out of the pool past the end.
    With `filled` every position of every sequence holds noise.
    """

    def make(
        lengths: list[int],
        *,
        size: int,
        heads: int,
        channels: int,
        dtype: torch.dtype = torch.float32,
        filled: bool = False,
    ) -> Pages:
        counts = [-(-length // size) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)).split(counts)
        tables = torch.full((len(lengths), max(counts)), 2**30, dtype=torch.int32)
        pool = torch.full((sum(counts), 2, size, heads, channels), torch.nan, dtype=dtype)
        for row, (length, blocks) in enumerate(zip(lengths, order, strict=True)):
            tables[row, : len(blocks)] = blocks
            for at in range(length if filled else 0):
                pool[blocks[at // size], :, at % size] = noise(2, heads, channels, dtype=dtype)
        return Pages(pool[:, 0], pool[:, 1], tables)

    return make
