"""The parts of a form with adapters: files are written to the disk piece by piece, the rest is short text."""

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from videoserve.api.body import body_too_large
from videoserve.api.errors import unknown_field
from videoserve.api.multipart import HEADER_MAX, broken
from videoserve.config import Settings
from videoserve.errors import InvalidField, ServeError
from videoserve.storage.files import disk_full, disk_full_is_told
from videoserve_lora.signature import signature
from videoserve_lora.store import AdapterStore

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FILES: Final = ("file", "file_low")
FIELDS: Final = ("name", "base_model", "target", "alpha", "steps", "allow_unused", "replace")
TEXT_MAX: Final = 4096
PARTS_MAX: Final = 32
# What a signature is told from.
START: Final = 512
SUFFIXES: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".zip", ".tar", ".gz", ".tgz", ".7z", ".gguf")
PLAIN: Final = (b"", b"binary", b"8bit", b"7bit", b"identity")


@dataclass
class Received:
    """A file on the disk."""

    place: Path
    size: int = 0
    sha256: Any = field(default_factory=hashlib.sha256)

    def told(self) -> dict[str, Any]:
        return {"sha256": self.sha256.hexdigest(), "bytes": self.size}


class AdapterParts:
    """Gathers what the parser finds: `files` and `texts` by field. Headers and data come in pieces of its choosing."""

    def __init__(self, store: AdapterStore, content_type: str, settings: Settings):
        """Raises ServeError 400 for a Content-Type without a usable boundary."""
        self.files: dict[str, Received] = {}
        self.texts: dict[str, list[str]] = {}
        self._store = store
        self._settings = settings
        self._file: IO[bytes] | None = None
        self._into: Received | bytearray = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._key, self._line, self._start = bytearray(), bytearray(), bytearray()
        self._parts = self._bytes = 0
        self._ended = False
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise broken("its Content-Type has no boundary")
        try:
            self._parser = MultipartParser(boundary, self._callbacks(), max_header_size=HEADER_MAX)
        except FormParserError as error:
            raise broken(str(error).rstrip(".")) from None

    def feed(self, data: bytes, last: bool) -> None:
        """The next bytes of the body. Raises FormParserError and ServeError."""
        self._check_room(len(data))
        self._parser.write(data)
        if last:
            self._parser.finalize()
            if not self._ended:
                raise broken("it ends before its last boundary")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._key.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._line.extend(data[start:end]),
            "on_header_end": self._header,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise FormParserError(f"it has more than {PARTS_MAX} parts")
        self._headers = {}

    def _header(self) -> None:
        self._headers[bytes(self._key).lower()] = bytes(self._line)
        self._key.clear()
        self._line.clear()

    def _open(self) -> None:
        """Where the data of the part go. Its file name says what it is not; nothing else is made of it."""
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        if name not in FILES:
            known = name.removesuffix("[]")
            if known not in FIELDS:
                raise unknown_field(name, dict.fromkeys(FILES + FIELDS))
            self._into = bytearray()
            self._headers[b"name"] = known.encode()
            return
        for header in (b"content-encoding", b"content-transfer-encoding"):
            if self._headers.get(header, b"").strip().lower() not in PLAIN:
                raise refused(f"The part {name} has a {header.decode()}; adapters are taken as they are, without any.")
        suffix = next((end for end in SUFFIXES if options.get(b"filename", b"").lower().endswith(end.encode())), None)
        if suffix is not None:
            raise refused(f"The file name of {name} ends in {suffix}; adapters are safetensors files.")
        if name in self.files:
            raise InvalidField(name, f"{name} is given twice; the second file of a pair is file_low.")
        self._into = self.files[name] = Received(place=self._store.temporary())
        self._file = self._into.place.open("wb")
        self._start.clear()

    def _data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if isinstance(self._into, bytearray):
            self._into += piece
            if len(self._into) > TEXT_MAX:
                raise InvalidField(
                    self._headers[b"name"].decode(), f"A field of the form has more than {TEXT_MAX} bytes."
                )
            return
        assert self._file is not None
        self._bytes += len(piece)
        if self._bytes > self._settings.adapter_bytes:
            raise body_too_large(self._settings.adapter_bytes)
        if len(self._start) < START:
            self._start += piece[: START - len(self._start)]
            if len(self._start) == START:
                self._refuse_signature()
        self._into.size += len(piece)
        self._into.sha256.update(piece)
        with disk_full_is_told():
            self._file.write(piece)

    def _end_part(self) -> None:
        if isinstance(self._into, bytearray):
            text = self._into.decode(errors="replace")
            if text:
                self.texts.setdefault(self._headers[b"name"].decode(), []).append(text)
            return
        assert self._file is not None
        with disk_full_is_told():
            self._file.close()
        self._file = None
        if len(self._start) < START:
            self._refuse_signature()

    def _end(self) -> None:
        self._ended = True

    def _refuse_signature(self) -> None:
        what = signature(bytes(self._start))
        if what is not None:
            raise refused(f"The file is {what}; adapters are safetensors files.")

    def _check_room(self, size: int) -> None:
        # What is stored in the end is about as large once more.
        free = shutil.disk_usage(self._store.root).free - size - self._bytes
        if free < self._settings.disk_floor_bytes:
            raise disk_full()


def refused(sentence: str) -> ServeError:
    """415: what this is, is not taken."""
    return ServeError(sentence, status=415, code="unsupported_media_type", param="file")
