"""Products of 8-bit matrices on a CPU: exact sums, and errors that the codes explain."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import gemm, reference
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.codes import Codes
from videoserve_kernels.gemm import quantise_blocks, quantise_groups, quantise_rows, scaled_linear

Fixture = Callable[..., Tensor]
SHAPES = [(1, 1, 1), (5, 130, 17), (33, 300, 129), (0, 8, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_torchs_int8_product_is_right(shape: tuple[int, int, int], biased: bool, noise: Fixture) -> None:
    rows, depth, columns = shape
    operands = quantise_rows(noise(rows, depth)), quantise_rows(noise(columns, depth))
    bias = noise(columns) if biased else None
    got = scaled_linear(*operands, bias=bias, dtype=torch.float32)
    truth = reference.scaled_linear(*operands, bias=bias, dtype=torch.float64)
    torch.testing.assert_close(got.double(), truth, atol=1e-5, rtol=1e-5)


def test_torchs_int8_sums_do_not_saturate() -> None:
    x = Codes(torch.full((17, 300), -127, dtype=torch.int8), torch.ones(17))
    assert (scaled_linear(x, x, dtype=torch.float32, backend="int_mm") == 127 * 127 * 300).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 130, 17), (130, 300, 129)])
def test_codes_are_near_the_numbers_and_products_near_theirs(shape: tuple[int, int, int], noise: Fixture) -> None:
    rows, depth, columns = shape
    x, weight = noise(rows, depth), noise(columns, depth)
    # One loud channel costs precision in its own block only.
    if depth > 128:
        weight[:, 128:] *= 1e-4
    exact = (x.double() @ weight.double().t()).float()
    for operands, bound in (
        ((quantise_rows(x), quantise_rows(weight)), 0.02),
        ((quantise_groups(x), quantise_blocks(weight)), 0.06),
        ((quantise_groups(x, block=32), quantise_blocks(weight, block=32)), 0.06),
    ):
        got = scaled_linear(*operands, dtype=torch.float32)
        assert (got - exact).norm() <= bound * exact.norm()


@pytest.mark.parametrize("size", [32, 128])
def test_a_block_has_the_scale_of_its_largest_number(size: int, noise: Fixture) -> None:
    weight = noise(130, 200)
    codes, scales, block = quantise_blocks(weight, block=size)
    assert block == size
    assert codes.shape == weight.shape
    assert scales.shape == (-(-130 // size), -(-200 // size))
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        tile = weight[i * size : (i + 1) * size, j * size : (j + 1) * size]
        torch.testing.assert_close(scales[i, j], tile.abs().max() / 448)
        back = codes[i * size : (i + 1) * size, j * size : (j + 1) * size].float() * scales[i, j]
        torch.testing.assert_close(back, tile, rtol=1 / 16, atol=float(scales[i, j]) * 2**-10)
    groups, group_scales, _ = quantise_groups(weight, block=size)
    assert group_scales.shape == (130, -(-200 // size))
    torch.testing.assert_close(group_scales[7, -1], weight[7, (200 - 1) // size * size :].abs().max() / 448)
    torch.testing.assert_close(groups[7, :size].float() * group_scales[7, 0], weight[7, :size], rtol=1 / 16, atol=1e-5)


def test_backends_say_why_they_cannot_run(noise: Fixture) -> None:
    blocks = quantise_groups(noise(4, 512)), quantise_blocks(noise(128, 512))
    with pytest.raises(BackendUnavailableError, match="scale a block on cuda only and the input is on cpu"):
        scaled_linear(*blocks, backend="scaled_mm")
    with pytest.raises(BackendUnavailableError, match="codes with a scale a block"):
        scaled_linear(*blocks, backend="int_mm")
    with pytest.raises(BackendUnavailableError, match="fails on empty matrices"):
        scaled_linear(quantise_rows(noise(0, 8)), quantise_rows(noise(2, 8)), backend="int_mm")


def test_cublas_gets_its_scales_as_it_wants_them(noise: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No card here: what torch checks of the layout on one, and the product out of what it is handed."""

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        rows, depth = a.shape
        assert b.stride() == (1, depth)
        assert (scale_a.shape, scale_a.stride()) == ((rows, depth // 128), (1, rows))
        assert (scale_b.shape, scale_b.stride()) == ((depth // 128, b.shape[1] // 128), (1, depth // 128))
        of_b = scale_b.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
        return ((a.float() * scale_a.repeat_interleave(128, dim=1)) @ (b.float() * of_b)).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", product)
    operands = quantise_groups(noise(8, 512)), quantise_blocks(noise(256, 512))
    truth = reference.scaled_linear(*operands, dtype=torch.float32)
    torch.testing.assert_close(gemm.scaled_mm(*operands).float(), truth, rtol=1e-2, atol=1e-2)
