"""What this process found in the index not long ago: all it knows while Redis is away."""

import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from videoserve_cache.index.entry import Entry
from videoserve_cache.index.key import Key

KEPT: Final = 4096


class Recent:
    """The last entries by name, without peers. Thread-safe. Forgotten within a beat of a drop by hand."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[str, str], tuple[Entry, float]] = OrderedDict()

    def remember(self, key: Key, entry: Entry) -> None:
        with self._lock:
            name = (key.name, key.tenant)
            self._entries[name] = (replace(entry, here=("memory", "disk"), peers=()), time.monotonic())
            self._entries.move_to_end(name)
            if len(self._entries) > KEPT:
                self._entries.popitem(last=False)

    def find(self, key: Key) -> Entry | None:
        with self._lock:
            found = self._entries.get((key.name, key.tenant))
        if found is None:
            return None
        entry, since = found
        return replace(entry, age_s=entry.age_s + time.monotonic() - since)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._entries.pop((key.name, key.tenant), None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
