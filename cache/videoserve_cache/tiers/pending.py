"""What was put while Redis did not answer: its files are there, and the index hears of them when it can."""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Final

from videoserve_cache.index.entry import Entry
from videoserve_cache.index.key import Key

# No more files than this lie outside all limits.
WAITING: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """limits: bytes of each tier that has the file."""

    key: Key
    entry: Entry
    limits: dict[str, int]


class Pending:
    """Thread-safe, first in, first out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commits: deque[Commit] = deque()

    @property
    def full(self) -> bool:
        return len(self._commits) >= WAITING

    def add(self, commit: Commit) -> None:
        with self._lock:
            self._commits.append(commit)

    def take(self) -> Commit | None:
        with self._lock:
            return self._commits.popleft() if self._commits else None

    def give_back(self, commit: Commit) -> None:
        with self._lock:
            self._commits.appendleft(commit)
