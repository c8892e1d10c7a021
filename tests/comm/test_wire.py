"""The wire's codecs: size, error, rows that are odd, and values that are not finite."""

import pytest
import torch
from torch import Tensor

from videoserve_kernels.comm.wire import CODECS, Codec, codec_named

SHAPES = [(2, 5, 3, 12), (1, 7, 1, 5), (1, 0, 3, 8), (2, 3, 0, 8)]
# Relative L2 error on normal data.
ERROR = {"none": 0.0, "int8": 1.4e-2, "fp8": 5.5e-2}


def there(codec: Codec, x: Tensor) -> Tensor:
    """x after its way through bytes."""
    wire = codec.encode(x)
    assert wire.dtype == codec.wire_dtype(x.dtype)
    batch, length, heads, channels = x.shape
    return codec.decode(wire.view(-1), (batch, length, heads, channels), x.dtype)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_arrives_has_the_shape_dtype_and_size_that_were_told(
    codec: Codec, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = there(codec, x)
    assert got.shape == x.shape
    assert got.dtype == dtype
    rows = x.shape[:-1].numel()
    each = shape[-1] * dtype.itemsize if codec.name == "none" else shape[-1] + 4
    assert codec.row_bytes(shape[-1], dtype.itemsize) == each
    assert codec.encode(x).view(-1).view(torch.uint8).numel() == rows * each
    if codec.name == "none":
        assert torch.equal(got, x)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_error_on_normal_data(codec: Codec) -> None:
    x = torch.randn(1, 500, 4, 64, generator=torch.Generator().manual_seed(2))
    error = ((there(codec, x) - x).norm() / x.norm()).item()
    assert error <= ERROR[codec.name]
    assert codec.name == "none" or error > ERROR[codec.name] / 3


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_each_token_and_head_has_a_scale_of_its_own(name: str) -> None:
    x = torch.randn(1, 4, 2, 16, generator=torch.Generator().manual_seed(3))
    large = x.clone()
    large[0, 1, 0] *= 1e6
    got = there(codec_named(name), large)
    untouched = torch.ones(1, 4, 2, dtype=torch.bool)
    untouched[0, 1, 0] = False
    assert torch.equal(got[untouched], there(codec_named(name), x)[untouched])


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_zeros_stay_zeros_and_the_largest_value_stays(name: str) -> None:
    x = torch.zeros(1, 2, 1, 6)
    x[0, 1] = torch.tensor([0.0, 3.0, -3.0, 1.0, 0.0, 2.5])
    got = there(codec_named(name), x)
    assert torch.equal(got[0, 0], x[0, 0])
    assert got[0, 1, 0, 1].item() == pytest.approx(3.0, rel=1e-6)
    assert got[0, 1, 0, 2].item() == pytest.approx(-3.0, rel=1e-6)


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_arrives_so_and_spoils_no_other(name: str, bad: float) -> None:
    x = torch.randn(1, 3, 2, 8, generator=torch.Generator().manual_seed(4))
    x[0, 1, 1, 5] = bad
    got = there(codec_named(name), x)
    assert not got[0, 1, 1].isfinite().any()
    got[0, 1, 1] = 0
    assert got.isfinite().all()


def test_strided_input_is_taken_as_it_is() -> None:
    x = torch.randn(2, 5, 6, 8)
    for codec in CODECS:
        assert torch.equal(there(codec, x[:, 1:4, 2:5]), there(codec, x[:, 1:4, 2:5].contiguous()))


def test_an_unknown_codec_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'int4'; there are none, int8, fp8"):
        codec_named("int4")
