"""Range requests, as RFC 9110 has them: which bytes of a file a header asks for."""

from dataclasses import dataclass

# Beyond this a list of ranges costs more than the file; it is then sent whole.
RANGES_MAX = 16
# Python reads no number of more than 4300 digits, and no file has a byte that takes a tenth of them.
DIGITS_MAX = 400


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `first` to `last`, both included, counted from 0."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1

    def content_range(self, size: int) -> str:
        return f"bytes {self.first}-{self.last}/{size}"


def parse_ranges(header: str, size: int) -> list[ByteRange] | None:
    """The ranges that lie in a file of `size` bytes; empty when none does (416).

    None when the header is to be ignored: another unit, malformed, or more than RANGES_MAX ranges.
    """
    unit, equals, text = header.partition("=")
    parts = [part.strip() for part in text.split(",")]
    if unit.strip().lower() != "bytes" or not equals or len(parts) > RANGES_MAX:
        return None
    found = []
    for part in parts:
        first, dash, last = part.partition("-")
        if not dash or not all(end == "" or _is_number(end) for end in (first, last)):
            return None
        if first == "" and last == "":
            return None
        if first == "":
            start, end = max(size - int(last), 0), size - 1
        else:
            start, end = int(first), min(int(last), size - 1) if last else size - 1
            if last and int(last) < start:
                return None
        if start <= end and start < size:
            found.append(ByteRange(start, end))
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
