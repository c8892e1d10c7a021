"""An open safetensors file whose bytes are read piece by piece, never mapped: what it costs is known beforehand."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from videoserve_lora.dtypes import Floats
from videoserve_lora.header import Entry, read_header
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused

PIECE = 4 << 20


class TensorFile:
    """A safetensors file and its tensors by key; a context manager. Refused, unless it is one through and through."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self.path = path
        self._file = path.open("rb")
        try:
            header = read_header(self._file, os.fstat(self._file.fileno()).st_size, limits or Limits())
        except BaseException:
            self._file.close()
            raise
        self.entries = {entry.key: entry for entry in header.entries}
        self.metadata = header.metadata

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def pieces(self, entry: Entry) -> Iterator[bytes]:
        """The bytes of a tensor, at most 4 MiB at a time, each piece of whole numbers. Refused when the file shrank."""
        for start in range(0, entry.nbytes, PIECE):
            self._file.seek(entry.start + start)
            wanted = min(PIECE, entry.nbytes - start)
            piece = self._file.read(wanted)
            if len(piece) != wanted:
                raise Refused(f"The file ended in the middle of {entry.key}.", [entry.key])
            yield piece

    def floats(self, entry: Entry) -> Floats:
        """A tensor as float32, in its own shape; exact."""
        # A bytearray, because torch warns of arrays that cannot be written to.
        return entry.dtype.floats(bytearray().join(self.pieces(entry))).reshape(entry.shape)

    def largest(self, entry: Entry) -> float:
        """The largest magnitude among its numbers; Inf or NaN when one of them is."""
        # max() of Python's own would pass over a NaN.
        return float(np.max([entry.dtype.largest(piece) for piece in self.pieces(entry)]))
