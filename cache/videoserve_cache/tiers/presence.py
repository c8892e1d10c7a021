"""Who of a node is there: the last one to leave takes what lies in the machine's memory along."""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO


class Presence:
    """A shared lock on a file in the tier's folder, held by each process; one that is killed gives it back as well."""

    def __init__(self, folder: Path):
        """Makes the folder, for its owner only. Waits for a last one who is just leaving."""
        self._folder = folder
        while (file := _enter(folder)) is None:
            pass
        self._file = file

    def leave(self) -> bool:
        """True for the last one, who is alone until `close`."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def clear(self) -> None:
        """Removes the folder with all that is in it. For whom `leave` told that nobody else is there."""
        shutil.rmtree(self._folder)

    def close(self) -> None:
        self._file.close()


def _enter(folder: Path) -> IO[str] | None:
    """None when the folder was removed meanwhile."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    place = folder / "lock"
    try:
        file = place.open("a")
    except FileNotFoundError:
        return None
    fcntl.flock(file, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if place.stat().st_ino == os.fstat(file.fileno()).st_ino:
            return file
    file.close()
    return None
