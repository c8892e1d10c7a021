"""The five types of numbers an adapter may be stored in, and reading them without torch."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """A type as safetensors calls it: its codes as unsigned integers, and what they mean."""

    name: str
    raw: type[np.unsignedinteger]
    decode: Callable[[NDArray[np.unsignedinteger]], Floats]

    @property
    def itemsize(self) -> int:
        return np.dtype(self.raw).itemsize

    @property
    def unsigned(self) -> np.unsignedinteger:
        """Masks all bits but the sign."""
        return self.raw(2 ** (8 * self.itemsize - 1) - 1)

    def floats(self, content: bytes | bytearray) -> Floats:
        """The numbers as float32 [n]; exact for every type here."""
        return self.decode(np.frombuffer(content, dtype=np.dtype(self.raw).newbyteorder("<")))

    def largest(self, content: bytes) -> float:
        """The largest magnitude among the numbers; Inf or NaN when one of them is."""
        bits = np.frombuffer(content, dtype=np.dtype(self.raw).newbyteorder("<"))
        # Without their sign, floats are in the order of their bits, and Inf and NaN come last.
        highest = (bits & self.unsigned).max()
        return float(self.decode(np.asarray([highest], dtype=self.raw))[0])


def small(exponent_bits: int) -> Floats:
    """The 256 values of an 8-bit float with that many bits of exponent, IEEE's way."""
    mantissa_bits, bias = 7 - exponent_bits, 2 ** (exponent_bits - 1) - 1
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    size = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    values: Floats = np.where(codes < 128, size, -size).astype(np.float32)
    return values


def e4m3() -> Floats:
    values = small(4)
    values[[0x7F, 0xFF]] = np.nan
    return values


def e5m2() -> Floats:
    values = small(5)
    for sign, code in ((1, 0x7C), (-1, 0xFC)):
        values[code] = sign * np.inf
        values[code + 1 : code + 4] = np.nan
    return values


def from_brain(bits: NDArray[np.unsignedinteger]) -> Floats:
    values: Floats = (bits.astype(np.uint32) << 16).view(np.float32)
    return values


DTYPES = {
    kind.name: kind
    for kind in (
        Dtype(name="F32", raw=np.uint32, decode=lambda bits: bits.view(np.float32)),
        Dtype(name="F16", raw=np.uint16, decode=lambda b: b.view(np.float16).astype(np.float32)),
        Dtype(name="BF16", raw=np.uint16, decode=from_brain),
        Dtype(name="F8_E4M3", raw=np.uint8, decode=lambda codes: e4m3()[codes]),
        Dtype(name="F8_E5M2", raw=np.uint8, decode=lambda codes: e5m2()[codes]),
    )
}
