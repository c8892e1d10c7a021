"""What one process has found out and the next one need not find out again."""

import json
import os
from pathlib import Path
from typing import Any


class Memo:
    """JSON values by key, kept in one file. `path` None keeps them in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = self._read()

    def get(self, key: str) -> Any:
        """The value, None for a key that is not known."""
        return self._known.get(key)

    def keep(self, key: str, value: Any) -> None:
        # What another process has found out since stays.
        self._known = {**self._known, **self._read(), key: value}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Two workers may write at once: each replaces the whole file.
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(self._known))
        fresh.replace(self._path)

    def _read(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        if self._path is not None and self._path.is_file():
            known = json.loads(self._path.read_text())
        return known
