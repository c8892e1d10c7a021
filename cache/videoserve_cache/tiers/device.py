"""The smallest and fastest tier: objects of this process, on a device or not, as the user made them from bytes."""

import threading
from collections import OrderedDict
from typing import Any


class DeviceTier:
    """The last used objects of up to `limit` bytes together, by the digest of their entry. Thread-safe.

    They are forgotten when an entry is dropped by hand anywhere, within a beat.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.bytes = 0

    def get(self, digest: str) -> Any | None:
        with self._lock:
            if digest not in self._held:
                return None
            self._held.move_to_end(digest)
            return self._held[digest][0]

    def put(self, digest: str, thing: Any, size: int) -> bool:
        """False when it is larger than the whole tier. `size` in bytes."""
        if size > self._limit:
            return False
        with self._lock:
            self._remove(digest)
            self._held[digest] = (thing, size)
            self.bytes += size
            while self.bytes > self._limit:
                self._remove(next(iter(self._held)))
        return True

    def drop(self, digest: str) -> None:
        with self._lock:
            self._remove(digest)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.bytes = 0

    def _remove(self, digest: str) -> None:
        _, size = self._held.pop(digest, (None, 0))
        self.bytes -= size
