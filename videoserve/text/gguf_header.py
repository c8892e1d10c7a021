"""The header of a GGUF file: what it says of itself, and where its tensors lie."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from videoserve.text.shape import UnknownModelError

# The format's numbers for types of values.
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor: `shape` as torch has it, `kind` GGML's number of its type, `at` bytes from the file's beginning."""

    name: str
    shape: tuple[int, ...]
    kind: int
    at: int


class Header:
    """`header(key)` is a value; UnknownModelError names the file when the key is missing, or it is no GGUF file."""

    def __init__(self, file: Path):
        self.name = file.name
        self._content = memoryview(file.read_bytes())
        self._at = 4
        if bytes(self._content[:4]) != b"GGUF" or self._number("I") not in (2, 3):
            raise UnknownModelError(f"{file.name} is no GGUF file of version 2 or 3.")
        tensors, values = self._number("Q"), self._number("Q")
        self.values = {self._string(): self._value(self._number("I")) for _ in range(values)}
        found = [self._tensor() for _ in range(tensors)]
        alignment = self.values.get("general.alignment", ALIGNMENT)
        start = -(-self._at // alignment) * alignment
        self.tensors = [Stored(name=n, shape=s, kind=k, at=start + offset) for n, s, k, offset in found]

    def __call__(self, key: str) -> Any:
        if key not in self.values:
            raise UnknownModelError(f"{self.name} does not say {key}, which its model needs.")
        return self.values[key]

    def bytes_at(self, at: int, size: int) -> memoryview:
        if at + size > len(self._content):
            raise UnknownModelError(f"{self.name} ends in the middle of a tensor: it is not complete.")
        return self._content[at : at + size]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        # The fastest dimension comes first.
        shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{code}")
        if self._at + layout.size > len(self._content):
            raise UnknownModelError(f"{self.name} ends in the middle of its header: it is not complete.")
        found = layout.unpack_from(self._content, self._at)
        self._at += layout.size
        return found

    def _string(self) -> str:
        size = self._number("Q")
        text = bytes(self.bytes_at(self._at, size)).decode("utf-8", errors="replace")
        self._at += size
        return text

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner in NUMBERS:
                return list(self._numbers(NUMBERS[inner], count))
            return [self._value(inner) for _ in range(count)]
        if kind not in NUMBERS:
            raise UnknownModelError(f"{self.name} has a value of type {kind}, which GGUF files do not have.")
        return self._number(NUMBERS[kind])
