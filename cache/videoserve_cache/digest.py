"""What a value is told apart by: one sha256 of its canonical bytes, the same on every machine and in every process."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any


def digest(kind: str, version: int, value: Any) -> str:
    """sha256 (hex) of a value that JSON can hold; other kinds and versions never share one."""
    return hashlib.sha256(canonical([kind, version, value])).hexdigest()


def canonical(value: Any) -> bytes:
    """A value as bytes that no other value has: typed, length-prefixed, keys sorted, floats by their bits.

    TypeError for anything but None, bool, int, float, str, bytes, sequences and mappings with str keys.
    """
    match value:
        case None:
            return framed("n", b"")
        case bool():
            return framed("b", b"1" if value else b"0")
        case int():
            return framed("i", str(value).encode())
        case float():
            # Decimal digits would depend on who prints them, and 0.0 equals -0.0.
            return framed("f", value.hex().encode())
        case str():
            return framed("s", value.encode())
        case bytes():
            return framed("y", value)
        case Mapping():
            return framed("d", b"".join(canonical(key) + canonical(value[key]) for key in sorted(value)))
        case Sequence():
            return framed("l", b"".join(map(canonical, value)))
    raise TypeError(f"A {type(value).__name__} has no canonical bytes.")


def framed(tag: str, content: bytes) -> bytes:
    return f"{tag}{len(content)}:".encode() + content
