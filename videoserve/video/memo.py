"""What one process has found out and the next one need not find out again."""

from pathlib import Path
from typing import Any

from videoserve_kernels.kept_json import read_json, write_json


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
        if self._path is not None:
            write_json(self._path, self._known)

    def _read(self) -> dict[str, Any]:
        known: dict[str, Any] = {} if self._path is None else read_json(self._path) or {}
        return known
