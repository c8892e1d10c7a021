"""Eight bits a value: codes equal to the formula's, errors within half a step, memory of any layout."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from videoserve_kernels.quant import dequantise_heads, quantise_heads

Fixture = Callable[..., Tensor]
SHAPES = [(1, 1, 1, 1), (2, 19, 3, 12), (1, 33, 2, 128), (2, 0, 2, 8)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wire", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(shape: tuple[int, ...], wire: torch.dtype, dtype: torch.dtype, noise: Fixture) -> None:
    x = noise(*shape, dtype=dtype)
    codes, scales = quantise_heads(x, dtype=wire, backend="triton")
    expected_codes, expected_scales = quantise_heads(x, dtype=wire, backend="reference")
    assert torch.equal(scales, expected_scales)
    assert codes.dtype == wire
    assert torch.equal(codes.float(), expected_codes.float())
    back = dequantise_heads(codes, scales, dtype=torch.float32, backend="triton")
    assert torch.equal(back, dequantise_heads(codes, scales, dtype=torch.float32, backend="reference"))
    top = x.double().abs().amax(dim=-1, keepdim=True)
    # Half a step of 1/127; half of the last of four significant bits, or of a subnormal step of 2^-9.
    bound = top / 254 if wire == torch.int8 else torch.maximum(x.double().abs() / 16, top / 448 * 2**-10)
    assert ((back.double() - x.double()).abs() <= bound * (1 + 1e-5)).all()


def test_zeros_stay_zeros_and_what_is_not_finite_comes_back_as_nan(noise: Fixture) -> None:
    x = noise(1, 4, 2, 8)
    x[0, 0, 0] = 0
    x[0, 1, 0, 3] = torch.nan
    x[0, 2, 0, 3] = -torch.inf
    for wire in (torch.int8, torch.float8_e4m3fn):
        back = dequantise_heads(*quantise_heads(x, dtype=wire, backend="triton"), dtype=x.dtype, backend="triton")
        assert (back[0, 0, 0] == 0).all()
        assert back[0, 1:3, 0].isnan().all()
        assert back[0, 3].isfinite().all()
        assert back[:, :, 1].isfinite().all()


def test_a_part_lands_in_the_tensor_it_belongs_to(noise: Fixture) -> None:
    x = noise(2, 5, 4, 8)
    whole = torch.full((2, 9, 4, 8), 7.0)
    codes, scales = quantise_heads(x, dtype=torch.int8, backend="triton")
    # Heads of one rank are one contiguous run of codes.
    dequantise_heads(codes[1:3], scales[1:3], dtype=x.dtype, out=whole[:, 2:7, 1:3], backend="triton")
    torch.testing.assert_close(whole[:, 2:7, 1:3], x[:, :, 1:3], atol=0.02, rtol=0)
    whole[:, 2:7, 1:3] = 7
    assert (whole == 7).all()


def test_strides_beyond_32_bits(noise: Fixture) -> None:
    x = noise(2, 3, 2, 8, dtype=torch.float16)
    # numpy's zeros take memory only where they are touched.
    far = torch.from_numpy(np.zeros(2**31 + 64, dtype=np.float16)).as_strided(x.shape, (2**31, 16, 8, 1))
    far.copy_(x)
    codes, scales = quantise_heads(far, dtype=torch.int8, backend="triton")
    assert torch.equal(codes, quantise_heads(x, dtype=torch.int8, backend="reference")[0])
    far.zero_()
    dequantise_heads(codes, scales, dtype=x.dtype, out=far, backend="triton")
    torch.testing.assert_close(far.float(), x.float(), atol=0.02, rtol=0)
