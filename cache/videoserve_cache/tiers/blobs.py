"""The files of one tier of a node: blobs under the sha256 of their bytes, shared by the node's processes."""

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# Of so many files it is known that they were whole; a server that runs for months sees many more.
REMEMBERED: Final = 50_000

# Of a file system, for those whose work must not fail for what is merely kept: finished videos go to the same disk.
LEFT_FREE: Final = 0.05


class Corrupt(Exception):
    """A file is not what its name says."""


class Blobs:
    """root/<first two digits>/<sha256>; a blob is whole or absent.

    durable   also after a power cut: bytes are flushed before the file gets its name.

    Whoever has opened a blob keeps its bytes for as long as it wants them, also when it is removed meanwhile.
    """

    def __init__(self, root: Path, *, durable: bool):
        self.root = root
        self._durable = durable
        self._tmp = root / "tmp"
        # sha256 → inode, mtime and size of the file that had these bytes when this process last looked.
        self._verified: dict[str, tuple[int, int, int]] = {}
        # Nobody else's: /dev/shm is everybody's.
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._tmp.mkdir(exist_ok=True)

    def write(self, sha: str, content: bytes | memoryview) -> None:
        """Replaces what is there: it may be damaged. Raises OSError, with ENOSPC when the disk is full."""
        handle, name = tempfile.mkstemp(dir=self._tmp)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                if self._durable:
                    file.flush()
                    os.fsync(handle)
            place = self._place(sha)
            place.parent.mkdir(exist_ok=True)
            temporary.rename(place)
        finally:
            temporary.unlink(missing_ok=True)
        if self._durable:
            _sync_folder(place.parent)

    def read(self, sha: str, size: int | None = None) -> memoryview:
        """The bytes, `size` many where that is known, mapped. Raises FileNotFoundError, or Corrupt for others.

        A private mapping: what somebody writes into it changes nothing for others.
        """
        with self._place(sha).open("rb") as file:
            stat = os.fstat(file.fileno())
            if size is not None and stat.st_size != size:
                raise Corrupt(f"The blob {sha} has {stat.st_size} bytes instead of {size}.")
            # Nothing cannot be mapped.
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if stat.st_size else bytearray()
        content = memoryview(mapping)
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if self._verified.get(sha) != seen:
            if hashlib.sha256(content).hexdigest() != sha:
                raise Corrupt(f"The blob {sha} has other bytes.")
            if len(self._verified) >= REMEMBERED:
                self._verified.clear()
            self._verified[sha] = seen
        return content

    def remove(self, sha: str) -> None:
        """Harmless when it is not there."""
        self._verified.pop(sha, None)
        self._place(sha).unlink(missing_ok=True)

    def has(self, sha: str) -> bool:
        return self._place(sha).is_file()

    def spare(self) -> int:
        """Bytes of the file system that the cache may still take; negative when it should give some back."""
        told = os.statvfs(self.root)
        return told.f_frsize * (told.f_bavail - int(LEFT_FREE * told.f_blocks))

    def older(self, seconds: float) -> Iterator[str]:
        """sha256 of each blob that was written at least so long ago."""
        before = time.time() - seconds
        for blob in self.root.glob("[0-9a-f][0-9a-f]/*"):
            # Another process may remove it while this one looks.
            with suppress(FileNotFoundError):
                if blob.stat().st_mtime <= before:
                    yield blob.name

    def sweep(self, seconds: float) -> None:
        """Removes what writers that died left unfinished."""
        before = time.time() - seconds
        for leftover in self._tmp.iterdir():
            with suppress(FileNotFoundError):
                if leftover.stat().st_mtime <= before:
                    leftover.unlink()

    def _place(self, sha: str) -> Path:
        return self.root / sha[:2] / sha


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
