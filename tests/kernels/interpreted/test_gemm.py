"""Products of 8-bit matrices against float64, cut off at every edge."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.codes import Codes
from videoserve_kernels.gemm import quantise_blocks, quantise_groups, quantise_rows, scaled_linear

Fixture = Callable[..., Tensor]
# Rows, depth, columns: each height of tile, and edges in all three.
SHAPES = [(1, 1, 1), (17, 130, 5), (130, 200, 129), (0, 8, 8), (4, 0, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("block", [0, 32, 128])
def test_equals_the_formula(shape: tuple[int, int, int], biased: bool, block: int, noise: Fixture) -> None:
    rows, depth, columns = shape
    x, weight = noise(rows, depth), noise(columns, depth) / max(depth, 1) ** 0.5
    bias = noise(columns) if biased else None
    if block:
        operands = quantise_groups(x, block=block), quantise_blocks(weight, block=block)
    else:
        operands = rows_of(x), rows_of(weight)
    got = scaled_linear(*operands, bias=bias, dtype=torch.float32, backend="triton")
    wide = None if bias is None else bias.double()
    truth = reference.scaled_linear(*operands, bias=wide, dtype=torch.float64)
    torch.testing.assert_close(got.double(), truth, atol=1e-5, rtol=1e-5)
    assert torch.equal(scaled_linear(*operands, bias=bias, backend="triton"), got.bfloat16())


def rows_of(x: Tensor) -> Codes:
    # Of no channels there is no largest one.
    return quantise_rows(x) if x.shape[1] else Codes(x.to(torch.int8), torch.zeros(x.shape[0]))


def test_int32_sums_are_exact_where_float32_would_round() -> None:
    depth = 1200
    x = torch.full((1, depth), 127, dtype=torch.int8)
    weight = torch.full((2, depth), 127, dtype=torch.int8)
    weight[1, 0] = 126
    ones = torch.ones(2)
    got = scaled_linear(Codes(x, ones[:1]), Codes(weight, ones), dtype=torch.float64, backend="triton")
    # 127² · 1200 is above 2^24: the two rows differ by less than float32 can tell of their sums, so scales stay 1.
    assert got[0, 0] == torch.tensor(127.0 * 127 * depth).float()
    assert got[0, 1] == torch.tensor(127.0 * 127 * depth - 127).float()


def test_a_scale_that_is_nan_reaches_its_row_or_column_only(noise: Fixture) -> None:
    x, weight = quantise_rows(noise(3, 8)), quantise_rows(noise(4, 8))
    x.scales[1], weight.scales[2] = torch.nan, torch.nan
    got = scaled_linear(x, weight, backend="triton")
    assert got[1].isnan().all()
    assert got[:, 2].isnan().all()
    assert got.isnan().sum() == 6


def test_both_sides_have_one_size_of_block(noise: Fixture) -> None:
    with pytest.raises(BackendUnavailableError, match="on both sides, not 32 and 128"):
        scaled_linear(quantise_groups(noise(2, 64), block=32), quantise_blocks(noise(3, 64)), backend="triton")
