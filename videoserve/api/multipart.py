"""multipart/form-data bodies taken apart. A part's file name says whether it is a file, and nothing else."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from videoserve.errors import ServeError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PARTS_MAX = 1000
# A header line of a part holds the client's file name, which may be long and is not used.
HEADER_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Upload:
    """The bytes of a part that is a file, or may be one."""

    data: bytes


@dataclass
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: list[bytes] = field(default_factory=list)


def parse_multipart(body: bytes, content_type: str) -> list[tuple[str, str | Upload]]:
    """(name, value) of every part, in order: text where it is said to be text, else an Upload.

    Raises ServeError 400 for a body that is no multipart form.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise broken("its Content-Type has no boundary")
    parts: list[_Part] = []
    reader = _Reader(parts)
    try:
        parser = MultipartParser(boundary, reader.callbacks(), max_header_size=HEADER_MAX)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise broken(str(error).rstrip(".")) from None
    if not reader.ended:
        raise broken("it ends before its last boundary")
    return [_value(part) for part in parts]


class _Reader:
    """Gathers what the parser finds. Headers and data come in pieces of the parser's choosing."""

    def __init__(self, parts: list[_Part]):
        self.ended = False
        self._parts = parts
        self._name = bytearray()
        self._line = bytearray()

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._line.extend(data[start:end]),
            "on_header_end": self._header,
            "on_part_data": lambda data, start, end: self._parts[-1].data.append(data[start:end]),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self._parts) == PARTS_MAX:
            raise FormParserError(f"it has more than {PARTS_MAX} parts")
        self._parts.append(_Part())

    def _header(self) -> None:
        self._parts[-1].headers[bytes(self._name).lower()] = bytes(self._line)
        self._name.clear()
        self._line.clear()

    def _end(self) -> None:
        self.ended = True


def _value(part: _Part) -> tuple[str, str | Upload]:
    _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
    name = options.get(b"name")
    if name is None:
        raise broken("a part has no name")
    kind = part.headers.get(b"content-type", b"text/plain").lower()
    data = b"".join(part.data)
    # A part without a file name and of no other type may still be a file, when it is no text.
    text = None if b"filename" in options or not kind.startswith((b"text/plain", b"application/json")) else _text(data)
    return name.decode(errors="replace"), Upload(data) if text is None else text


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def broken(why: str) -> ServeError:
    return ServeError(f"The body is not a multipart form that can be read: {why}.", code="invalid_form")
