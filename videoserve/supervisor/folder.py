"""The data folder of a server, and the lock that keeps a second server out of it."""

import fcntl
import os
from pathlib import Path
from typing import IO


class FolderInUse(Exception):
    """Another server holds this data folder."""


class FolderLock:
    """Held from `take` until the process ends, however it ends: the kernel drops it with the open file.

    `shared` admits others that are shared as well: servers that have one Redis, outside the folder.
    """

    def __init__(self, folder: Path, *, shared: bool = False):
        self._folder = folder
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._file: IO[str] | None = None

    def take(self) -> None:
        """Makes the folder where needed. Raises FolderInUse, a sentence, when another process holds it."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Closed by `drop`, or by the kernel when this process ends.
        file = (self._folder / "server.lock").open("a+")
        try:
            fcntl.flock(file, self._kind | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise FolderInUse(
                f"The data folder {self._folder} is in use by another server (process {pid}); stop that one, or give "
                f"this one its own folder with --data."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
