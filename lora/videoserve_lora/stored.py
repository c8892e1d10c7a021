"""A tensor where it lies: in an open file, read when it is needed."""

from dataclasses import dataclass, replace

from videoserve_lora.dtypes import Floats
from videoserve_lora.header import Entry
from videoserve_lora.tensor_file import TensorFile
from videoserve_lora.writer import Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor of a file that is open as long as this is used."""

    file: TensorFile
    entry: Entry

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    def floats(self) -> Floats:
        """Float32, in its own shape; exact."""
        return self.file.floats(self.entry)

    def rows(self) -> Floats:
        """Float32 [first dimension, all others]."""
        return self.floats().reshape(self.shape[0], -1)

    def largest(self) -> float:
        """The largest magnitude among its numbers; Inf or NaN when one of them is."""
        return self.file.largest(self.entry)

    def shaped(self, shape: tuple[int, ...]) -> "Stored":
        """The same numbers in another shape."""
        return replace(self, entry=replace(self.entry, shape=shape))

    def content(self) -> Content:
        """Bit for bit what the file has."""
        entry = self.entry
        return Content(
            dtype=entry.dtype, shape=entry.shape, nbytes=entry.nbytes, pieces=lambda: self.file.pieces(entry)
        )
