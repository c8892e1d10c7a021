"""The header of a safetensors file of unknown origin, read by ourselves: within bounds, and believed in nothing."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from videoserve_lora.dtypes import DTYPES, Dtype
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused
from videoserve_lora.signature import signature

KEY = re.compile(r"[A-Za-z0-9_.]{1,256}")
# Adapters of convolutions over time and space have five.
MOST_DIMS = 5
FIELDS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor of a file: its key, type, shape, and where its bytes begin in the file."""

    key: str
    dtype: Dtype
    shape: tuple[int, ...]
    start: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numbers * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The tensors of a file in the order of their bytes, and what it says of itself, which is only ever repeated."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]


def read_header(file: BinaryIO, size: int, limits: Limits) -> Header:
    """The header of a safetensors file of `size` bytes. Refused."""
    if size > limits.file_bytes:
        raise Refused(f"The file has {size} bytes; at most {limits.file_bytes} are accepted.")
    start = file.read(512)
    if what := signature(start):
        raise Refused(f"The file is {what}, not a safetensors file.")
    if size < 10:
        raise Refused(f"The file has {size} bytes, which is too few for a safetensors file.")
    length = int.from_bytes(start[:8], "little")
    if length > limits.header_bytes:
        raise Refused(f"The file's header claims {length} bytes; at most {limits.header_bytes} are accepted.")
    if 8 + length > size:
        raise Refused(f"The file's header claims {length} bytes and the file has {size}: it is cut off.")
    file.seek(8)
    told = parsed(file.read(length))
    metadata = told.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise Refused("The file's __metadata__ is no set of texts.")
    if not 0 < len(told) <= limits.tensors:
        raise Refused(f"The file has {len(told)} tensors; 1 to {limits.tensors} are accepted.")
    entries = sorted((entry(key, of, 8 + length, limits) for key, of in told.items()), key=lambda e: e.start)
    seamless(entries, 8 + length, size)
    return Header(entries=tuple(entries), metadata=metadata)


def parsed(content: bytes) -> dict[str, Any]:
    """The header's JSON object. Refused."""
    if not content.startswith(b"{"):
        raise Refused("The file's header does not begin with '{', so this is not a safetensors file.")
    try:
        told: dict[str, Any] = json.loads(content.decode(), object_pairs_hook=distinct, parse_constant=no_constant)
    except Refused:
        raise
    except (ValueError, RecursionError):
        raise Refused("The file's header is not JSON that can be read.") from None
    return told


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Refused(f"The file's header has {shown(twice)} twice.", [shown(twice)])
    return told


def no_constant(name: str) -> None:
    raise Refused(f"The file's header has the number {name}.")


def shown(key: str) -> str:
    """A key of unknown origin, fit for a message."""
    return key if KEY.fullmatch(key) else ascii(key[:60])


def entry(key: str, told: Any, base: int, limits: Limits) -> Entry:
    """One tensor of the header, whose bytes begin `base` bytes into the file at the earliest. Refused."""
    if not KEY.fullmatch(key):
        raise Refused(f"The key {shown(key)} is not made of 1 to 256 letters, digits, '_' and '.'.", [shown(key)])
    if not isinstance(told, dict) or set(told) != FIELDS:
        raise Refused(f"The header says of {key} something else than dtype, shape and data_offsets.", [key])
    if not isinstance(told["dtype"], str) or told["dtype"] not in DTYPES:
        allowed = ", ".join(DTYPES)
        raise Refused(f"{key} is of the type {ascii(told['dtype'])[:40]}; {allowed} are accepted.", [key])
    shape, offsets = told["shape"], told["data_offsets"]
    if not whole_numbers(shape) or len(shape) > MOST_DIMS or not all(1 <= dim <= limits.dim for dim in shape):
        told_shape = f"{ascii(shape)[:60]}; at most {MOST_DIMS} dimensions of 1 to {limits.dim} are accepted"
        raise Refused(f"{key} has the shape {told_shape}.", [key])
    if not whole_numbers(offsets) or len(offsets) != 2:
        raise Refused(f"{key} has the offsets {ascii(offsets)[:60]}; a begin and an end are expected.", [key])
    read = Entry(key=key, dtype=DTYPES[told["dtype"]], shape=tuple(shape), start=base + offsets[0])
    if offsets[1] - offsets[0] != read.nbytes:
        raise Refused(
            f"{key} takes {read.nbytes} bytes by its shape and {offsets[1] - offsets[0]} by its offsets.", [key]
        )
    return read


def whole_numbers(value: Any) -> bool:
    # True and False are ints to Python.
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)


def seamless(entries: Sequence[Entry], base: int, size: int) -> None:
    """Refused unless the tensors fill the file's bytes without a gap and without lying over each other."""
    at = base
    for each in entries:
        if each.start != at:
            how = "lies over another tensor" if each.start < at else "leaves bytes before it that belong to no tensor"
            raise Refused(f"{each.key} {how}.", [each.key])
        at += each.nbytes
    if at != size:
        how = "is cut off" if at > size else "has bytes after its last tensor"
        raise Refused(f"The file has {size} bytes and its header describes {at}: it {how}.")
