"""The file of a trace: a header, and a JSON object a line."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from videoserve_cache.trace.line import Line

FORMAT: Final = "videoserve cache trace"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first line. `nonce` and `began` mean something to those alone who hold the secret they are used with."""

    nonce: str
    began: float
    format: str = FORMAT
    version: int = VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, path: Path) -> Self:
        """Raises ValueError, a sentence, when this does not begin a trace that can be read here."""
        try:
            header = cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError):
            header = cls(nonce="", began=0.0, format="")
        if (header.format, header.version) != (FORMAT, VERSION):
            raise ValueError(f"{path} is not a {FORMAT} of version {VERSION}.")
        return header


def read(path: Path) -> Iterator[Line]:
    """The lines of a trace, in their order. Raises ValueError, a sentence, at the first that is none.

    A last line without its end is what a process that was killed left behind, and is not read.
    """
    try:
        with path.open(encoding="utf-8") as file:
            Header.from_json(file.readline(), path)
            for number, text in enumerate(file, start=2):
                if text.endswith("\n"):
                    yield _line(text, number, path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a {FORMAT}: it is no text.") from None
    except OSError as error:
        raise ValueError(f"The trace {path} cannot be read: {error.strerror}.") from None


def _line(text: str, number: int, path: Path) -> Line:
    try:
        return Line.from_json(text)
    except ValueError as error:
        raise ValueError(f"Line {number} of {path} {error}.") from None
