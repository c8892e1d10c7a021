"""Eight bits a value on a CPU: error bounds, layout, and what cannot be coded."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.quant import dequantise_heads, quantise_heads

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 9, 3, 12), (2, 0, 2, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_within_half_a_step(shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture) -> None:
    x = noise(*shape, dtype=dtype)
    codes, scales = quantise_heads(x, dtype=torch.int8)
    batch, tokens, heads, channels = shape
    assert codes.shape == (heads, batch, tokens, channels)
    assert codes.is_contiguous()
    assert scales.shape == (heads, batch, tokens)
    back = dequantise_heads(codes, scales, dtype=torch.float32).double()
    bound = x.double().abs().amax(dim=-1, keepdim=True) / 254 * (1 + 1e-5)
    assert ((back - x.double()).abs() <= bound).all()


def test_int8_has_less_error_than_fp8_on_normal_numbers(noise: Fixture) -> None:
    x = noise(1, 200, 4, 64)
    errors = [
        ((dequantise_heads(*quantise_heads(x, dtype=wire), dtype=x.dtype) - x).norm() / x.norm()).item()
        for wire in (torch.int8, torch.float8_e4m3fn)
    ]
    assert errors[0] < 0.01
    assert 2 * errors[0] < errors[1] < 0.04


def test_values_so_small_that_the_scale_is_subnormal_keep_their_sign(noise: Fixture) -> None:
    x = torch.tensor([190.0, -190.0]).view(1, 1, 1, 2) * 2.0**-149
    back = dequantise_heads(*quantise_heads(x, dtype=torch.int8), dtype=x.dtype)
    assert torch.equal(back.sign(), x.sign())


def test_what_is_not_finite_comes_back_as_nan(noise: Fixture) -> None:
    x = noise(1, 3, 2, 8)
    x[0, 0, 0, 1], x[0, 1, 1, 1] = torch.nan, torch.inf
    for wire in (torch.int8, torch.float8_e4m3fn):
        back = dequantise_heads(*quantise_heads(x, dtype=wire), dtype=x.dtype)
        assert back[0, 0, 0].isnan().all()
        assert back[0, 1, 1].isnan().all()
        assert back.isnan().sum() == 16


def test_an_output_of_any_layout_is_filled(noise: Fixture) -> None:
    x, whole = noise(2, 5, 4, 8), torch.full((2, 9, 4, 8), torch.nan)
    codes, scales = quantise_heads(x, dtype=torch.int8)
    part = dequantise_heads(codes[1:3], scales[1:3], dtype=x.dtype, out=whole[:, 2:7, 1:3])
    assert part.data_ptr() == whole[:, 2:7, 1:3].data_ptr()
    torch.testing.assert_close(whole[:, 2:7, 1:3], x[:, :, 1:3], atol=0.02, rtol=0)
    assert whole.isfinite().sum() == part.numel()


def test_another_type_of_code_is_refused(noise: Fixture) -> None:
    with pytest.raises(BackendUnavailableError, match=r"torch.int8 or torch.float8_e4m3fn, not torch.int16"):
        quantise_heads(noise(1, 1, 1, 4), dtype=torch.int16)
