"""Writing safetensors files: the same tensors give the same bytes, whatever wrote them and in whatever order."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from videoserve_lora.dtypes import DTYPES, Dtype, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A tensor to be written: its bytes are asked for when their turn comes."""

    dtype: Dtype
    shape: tuple[int, ...]
    nbytes: int
    pieces: Callable[[], Iterable[bytes]]


def of_float(value: float) -> Content:
    """A scalar in float32."""
    packed = np.asarray(value, dtype="<f4").tobytes()
    return Content(dtype=DTYPES["F32"], shape=(), nbytes=4, pieces=lambda: [packed])


def of_floats(values: Callable[[], Floats], shape: tuple[int, ...]) -> Content:
    """A tensor in float32 that is computed when its turn comes."""
    return Content(
        dtype=DTYPES["F32"],
        shape=shape,
        nbytes=4 * math.prod(shape),
        pieces=lambda: [values().reshape(shape).astype("<f4").tobytes()],
    )


def write(path: Path, tensors: Mapping[str, Content], about: Mapping[str, str]) -> str:
    """Writes a safetensors file, flushed to the disk, and returns the sha256 of its bytes.

    Sorted by the size of their numbers, then by name: every tensor is aligned, and nothing depends on who wrote it.
    """
    order = sorted(tensors, key=lambda key: (-tensors[key].dtype.itemsize, key))
    head = header([(key, tensors[key]) for key in order], about)
    sha = hashlib.sha256()
    with path.open("wb") as file:
        for pieces in chain([[head]], (tensors[key].pieces() for key in order)):
            for piece in pieces:
                sha.update(piece)
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def header(tensors: Iterable[tuple[str, Content]], about: Mapping[str, str]) -> bytes:
    """The length of the header and the header, padded so that the first tensor is aligned."""
    told: dict[str, object] = {"__metadata__": dict(sorted(about.items()))}
    at = 0
    for key, tensor in tensors:
        told[key] = {"dtype": tensor.dtype.name, "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
