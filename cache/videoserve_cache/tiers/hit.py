"""What was found: the bytes, where they were, and what they were worth."""

from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from videoserve_cache.index.key import Key

Tier = Literal["memory", "disk", "peer"]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class Hit:
    """`content` is writable memory of this process' own, mapped: it stays right whatever becomes of the entry.

    While a Hit lives and is not closed its bytes are pinned, from the next beat on; closing does not touch `content`.
    cost_s: what it cost to compute; age_s: since then; size in bytes. cls: "E0", "E1" or "A".
    """

    key: Key
    content: memoryview
    about: dict[str, Any]
    tier: Tier
    age_s: float
    cost_s: float
    size: int
    cls: str
    sha256: str
    _closed: list[bool] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        return bool(self._closed)

    def close(self) -> None:
        """Nobody needs to keep the entry for this reader any more."""
        self._closed.append(True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
