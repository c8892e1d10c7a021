"""Products of 8-bit matrices on a CPU: exact sums, and errors that the codes explain."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.gemm import fp8_linear, int8_linear, quantise_blocks, quantise_groups, quantise_rows

Fixture = Callable[..., Tensor]
SHAPES = [(1, 1, 1), (5, 130, 17), (33, 300, 129), (0, 8, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_torchs_int8_product_is_right(shape: tuple[int, int, int], biased: bool, noise: Fixture) -> None:
    rows, depth, columns = shape
    operands = (*quantise_rows(noise(rows, depth)), *quantise_rows(noise(columns, depth)))
    bias = noise(columns) if biased else None
    got = int8_linear(*operands, bias=bias, dtype=torch.float32)
    truth = reference.int8_linear(*operands, bias=bias, dtype=torch.float64)
    torch.testing.assert_close(got.double(), truth, atol=1e-5, rtol=1e-5)


def test_torchs_int8_sums_do_not_saturate() -> None:
    x, ones = torch.full((17, 300), -127, dtype=torch.int8), torch.ones(17)
    got = int8_linear(x, ones, x, ones, dtype=torch.float32, backend="torch")
    assert (got == 127 * 127 * 300).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 130, 17), (130, 300, 129)])
def test_codes_are_near_the_numbers_and_products_near_theirs(shape: tuple[int, int, int], noise: Fixture) -> None:
    rows, depth, columns = shape
    x, weight = noise(rows, depth), noise(columns, depth)
    # One loud channel costs precision in its own block only.
    if depth > BLOCK:
        weight[:, BLOCK:] *= 1e-4
    exact = (x.double() @ weight.double().t()).float()
    for linear, operands, bound in (
        (int8_linear, (*quantise_rows(x), *quantise_rows(weight)), 0.02),
        (fp8_linear, (*quantise_groups(x), *quantise_blocks(weight)), 0.06),
    ):
        got = linear(*operands, dtype=torch.float32)
        assert (got - exact).norm() <= bound * exact.norm()


BLOCK = 128


def test_a_block_has_the_scale_of_its_largest_number(noise: Fixture) -> None:
    weight = noise(130, 200)
    codes, scales = quantise_blocks(weight)
    assert codes.shape == weight.shape
    assert scales.shape == (2, 2)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        block = weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
        torch.testing.assert_close(scales[i, j], block.abs().max() / 448)
        back = codes[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK].float() * scales[i, j]
        torch.testing.assert_close(back, block, rtol=1 / 16, atol=float(scales[i, j]) * 2**-10)
    groups, group_scales = quantise_groups(weight)
    assert group_scales.shape == (130, 2)
    torch.testing.assert_close(group_scales[7, 1], weight[7, 128:].abs().max() / 448)
    torch.testing.assert_close(groups[7, :128].float() * group_scales[7, 0], weight[7, :128], rtol=1 / 16, atol=1e-5)
