"""What attention's tensors travel as: as they are, or in 8 bits with one float32 scale a token and head."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from videoserve_kernels.comm.codecs import SCALE_BYTES, check_codec, row_bytes
from videoserve_kernels.quant import dequantise_heads, quantise_heads

Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A way to put [B, S, N, D] on the wire.

    `encode(x)` gives contiguous memory of `wire_dtype` whose bytes travel; `decode(wire, shape, dtype)` makes x of
    what arrived; `row_bytes(D, itemsize)` is what one token and head of D channels takes. A head that holds a value
    that is not finite arrives, from 8 bits, as NaN.
    """

    name: str
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, Shape, torch.dtype], Tensor]
    row_bytes: Callable[[int, int], int]
    wire_dtype: Callable[[torch.dtype], torch.dtype]


def encode_eight_bits(x: Tensor, codes_dtype: torch.dtype) -> Tensor:
    """One message: all scales first, where they are aligned whatever D is, then one byte a value; both head-major."""
    codes, scales = quantise_heads(x, dtype=codes_dtype)
    return torch.cat((scales.view(-1).view(torch.uint8), codes.view(-1).view(torch.uint8)))


def decode_eight_bits(wire: Tensor, shape: Shape, dtype: torch.dtype, codes_dtype: torch.dtype) -> Tensor:
    batch, length, heads, channels = shape
    scales, codes = torch.split(wire, [batch * length * heads * SCALE_BYTES, batch * length * heads * channels])
    return dequantise_heads(
        codes.view(codes_dtype).view(heads, batch, length, channels),
        scales.view(torch.float32).view(heads, batch, length),
        dtype=dtype,
    )


def as_it_is(x: Tensor) -> Tensor:
    return x.contiguous()


def view_as_it_is(wire: Tensor, shape: Shape, dtype: torch.dtype) -> Tensor:
    return wire.view(torch.uint8).view(dtype).view(shape)


def same_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype


def uint8_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8


def eight_bits(name: str, codes_dtype: torch.dtype) -> Codec:
    return Codec(
        name=name,
        encode=partial(encode_eight_bits, codes_dtype=codes_dtype),
        decode=partial(decode_eight_bits, codes_dtype=codes_dtype),
        row_bytes=partial(row_bytes, name),
        wire_dtype=uint8_dtype,
    )


CODECS = (
    Codec(
        name="none",
        encode=as_it_is,
        decode=view_as_it_is,
        row_bytes=partial(row_bytes, "none"),
        wire_dtype=same_dtype,
    ),
    eight_bits("int8", torch.int8),
    eight_bits("fp8", torch.float8_e4m3fn),
)


def codec_named(name: str) -> Codec:
    """The codec of this name; ValueError names the ones there are."""
    check_codec(name)
    return next(codec for codec in CODECS if codec.name == name)
