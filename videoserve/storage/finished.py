"""A finished video as one entry of the cache: its files and its receipt, in bytes that need no file store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from videoserve.types import Output

FORMAT = "videoserve-result-1"
# Bytes that hold the length of the description before the files.
HEAD = 8


class UnusableResultError(ValueError):
    """The bytes are not a finished video; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """`adjustments` are those that the engine told; `files` are by sha256, all that the outputs name."""

    outputs: Mapping[str, Output]
    receipt: dict[str, Any]
    adjustments: tuple[str, ...]
    files: Mapping[str, bytes | memoryview]

    def pack(self) -> bytes:
        order = [[sha256, len(content)] for sha256, content in self.files.items()]
        about = {
            "format": FORMAT,
            "outputs": {variant: output.to_dict() for variant, output in self.outputs.items()},
            "receipt": self.receipt,
            "adjustments": self.adjustments,
            "files": order,
        }
        head = json.dumps(about).encode()
        return b"".join((len(head).to_bytes(HEAD, "little"), head, *self.files.values()))

    @classmethod
    def unpack(cls, content: memoryview) -> Self:
        """The files are views of `content`. UnusableResultError."""
        end = HEAD + int.from_bytes(content[:HEAD], "little")
        try:
            about = json.loads(bytes(content[HEAD:end]))
        except ValueError:
            raise UnusableResultError("It does not begin with a description.") from None
        if about.get("format") != FORMAT:
            raise UnusableResultError(f"Its format is {about.get('format')!r}, and this reads {FORMAT}.")
        files = {}
        for sha256, size in about["files"]:
            files[sha256] = content[end : end + size]
            end += size
        return cls(
            outputs={variant: Output.from_dict(output) for variant, output in about["outputs"].items()},
            receipt=about["receipt"],
            adjustments=tuple(about["adjustments"]),
            files=files,
        )
