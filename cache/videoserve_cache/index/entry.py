"""What the index knows of an entry that was looked up."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A living node that has the bytes; `address` as in http://host:port."""

    node: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Size in bytes, cost_s in seconds to compute it again, age_s by the clock of Redis.

    here   tiers of this node that have the bytes.
    """

    sha256: str
    size: int
    about: dict[str, Any]
    cost_s: float
    cls: str
    age_s: float
    here: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
