"""What attention's tensors travel as: as they are, or in 8 bits with one float32 scale a token and head."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """A way to put [..., D] on the wire.

    `encode(x)` gives contiguous memory whose bytes travel; `decode(wire, shape, dtype)` makes x of what arrived, which
    is `empty(shape, dtype, device)` filled; `row_bytes(D, itemsize)` is what one row of D channels takes.
    """

    name: str
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, tuple[int, ...], torch.dtype], Tensor]
    row_bytes: Callable[[int, int], int]
    wire_dtype: Callable[[torch.dtype], torch.dtype]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for what arrives of a tensor of this shape and dtype, uint8 [n]."""
        rows = torch.Size(shape[:-1]).numel()
        return torch.empty(rows * self.row_bytes(shape[-1], dtype.itemsize), dtype=torch.uint8, device=device)


def scaled(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """x [..., D] brought to ±largest row by row, and the float32 scales [...] that bring it back.

    A row with a value that is not finite has a scale that is not finite: it arrives as not finite, whole.
    """
    scale = (x.float().abs().amax(dim=-1) / largest).clamp_min(torch.finfo(torch.float32).tiny)
    return x.float() / scale[..., None], scale


def pack(scale: Tensor, payload: Tensor) -> Tensor:
    """One message: all scales first, where they are aligned whatever D is, then one byte a value."""
    return torch.cat((scale.reshape(-1).view(torch.uint8), payload.reshape(-1).view(torch.uint8)))


def unpack(wire: Tensor, shape: tuple[int, ...], payload_dtype: torch.dtype, dtype: torch.dtype) -> Tensor:
    rows = torch.Size(shape[:-1]).numel()
    scale = wire[: rows * SCALE_BYTES].view(torch.float32).view(*shape[:-1], 1)
    return (wire[rows * SCALE_BYTES :].view(payload_dtype).view(shape).float() * scale).to(dtype)


def encode_int8(x: Tensor) -> Tensor:
    values, scale = scaled(x, 127.0)
    return pack(scale, values.round().to(torch.int8))


def decode_int8(wire: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return unpack(wire, shape, torch.int8, dtype)


def encode_fp8(x: Tensor) -> Tensor:
    values, scale = scaled(x, torch.finfo(torch.float8_e4m3fn).max)
    return pack(scale, values.to(torch.float8_e4m3fn))


def decode_fp8(wire: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return unpack(wire, shape, torch.float8_e4m3fn, dtype)


def as_it_is(x: Tensor) -> Tensor:
    return x.contiguous()


def view_as_it_is(wire: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return wire.view(torch.uint8).view(dtype).view(shape)


def full_row(channels: int, itemsize: int) -> int:
    return channels * itemsize


def eight_bit_row(channels: int, itemsize: int) -> int:
    return channels + SCALE_BYTES


def same_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype


def uint8_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8


CODECS = (
    Codec(name="none", encode=as_it_is, decode=view_as_it_is, row_bytes=full_row, wire_dtype=same_dtype),
    Codec(name="int8", encode=encode_int8, decode=decode_int8, row_bytes=eight_bit_row, wire_dtype=uint8_dtype),
    Codec(name="fp8", encode=encode_fp8, decode=decode_fp8, row_bytes=eight_bit_row, wire_dtype=uint8_dtype),
)


def codec_named(name: str) -> Codec:
    """The codec of this name; ValueError names the ones there are."""
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise ValueError(f"There is no wire codec called {name!r}; there are {', '.join(codec.name for codec in CODECS)}.")
