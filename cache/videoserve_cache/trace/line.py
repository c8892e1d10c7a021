"""One thing that happened to a cache entry, as a trace tells it: nothing in it leads back to what the entry holds."""

import json
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

What = Literal["hit", "miss", "put"]
WHATS: Final = get_args(What)
ENTRY_DIGITS: Final = 16
# Leading bits of a size that a trace keeps: whoever has a file must not find it by its exact length.
SIZE_BITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """`at` is in seconds since the trace began, `entry` a salted digest, `size` in bytes within 2%.

    `cost_s` is what computing the entry took. Both are 0 where the cache did not know them, as at most misses.
    """

    at: float
    what: What
    kind: str
    entry: str
    tier: str = ""
    size: int = 0
    cost_s: float = 0.0

    def to_json(self) -> str:
        fields: dict[str, Any] = {"at": round(self.at, 2), "what": self.what, "kind": self.kind, "entry": self.entry}
        if self.tier:
            fields["tier"] = self.tier
        if self.size:
            fields |= {"size": blurred(self.size), "cost_s": float(f"{self.cost_s:.3g}")}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Line":
        """Raises ValueError, a clause without the line's number, for what is no line of a trace."""
        try:
            line = cls(**json.loads(text))
        except (TypeError, json.JSONDecodeError):
            raise ValueError("is not an object with the fields of an event") from None
        if line.what not in WHATS:
            raise ValueError(f"has what {line.what!r}; it must be one of {', '.join(WHATS)}")
        numbers = (line.at, line.size, line.cost_s)
        if not all(type(number) in (int, float) and 0 <= number < float("inf") for number in numbers):
            raise ValueError(f"has at, size and cost_s {numbers}; they must be numbers from 0")
        if not all(isinstance(text, str) for text in (line.kind, line.entry, line.tier)):
            raise ValueError("has a kind, entry or tier that is no text")
        return line


def blurred(size: int) -> int:
    """A size by its leading bits alone, at most 1/64 off."""
    unit = 1 << max(0, size.bit_length() - SIZE_BITS)
    return (size + unit // 2) // unit * unit
