"""The file store: blobs under the sha256 of their bytes, in one folder that several processes may share."""

import errno
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from videoserve.errors import NotFound, ServeError

OWNER = "owner"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# The codes of a store that can do nothing for anybody now.
FAILING = ("store_unavailable", "storage_full")
# Bytes that must be free for a disk not to count as full: more than most videos take, with their checkpoints.
ROOM = 64 * 2**20


class FileStore:
    """Content-addressed blobs: root/<first two digits>/<sha256>, read-only once they are there.

    A blob is whole or absent, also after a power cut: bytes go to root/tmp, are flushed to the disk, and are then
    renamed into place. Putting the same bytes twice, or at the same time, is one blob.
    """

    def __init__(self, root: Path):
        self.root = root
        self._tmp = root / "tmp"
        self._tmp.mkdir(parents=True, exist_ok=True)

    def put(self, data: bytes) -> str:
        """Stores `data` and returns its sha256. Raises ServeError 507 when the disk is full."""
        sha = hashlib.sha256(data).hexdigest()
        if self._keep_existing(sha):
            return sha
        with disk_full_is_told():
            self._write(data, sha)
        return sha

    def put_file(self, path: Path) -> str:
        """Moves the file at `path` into the store and returns its sha256; it must no longer be written to.

        A path from `temporary()` is renamed; one on another file system is copied first.
        """
        with path.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256").hexdigest()
        if self._keep_existing(sha):
            path.unlink()
            return sha
        with disk_full_is_told():
            if path.parent.stat().st_dev == self._tmp.stat().st_dev:
                self._commit(path, sha)
            else:
                self._write(path.read_bytes(), sha)
                path.unlink()
        return sha

    def owner(self) -> str | None:
        """Whose the store is; None while it is nobody's."""
        try:
            return (self.root / OWNER).read_text().strip()
        except FileNotFoundError:
            return None

    def claim(self, owner: str) -> str:
        """Whose the store is: that of `owner` when it was nobody's until now. Raises ServeError 507."""
        place = self.root / OWNER
        temporary = self.temporary()
        try:
            with disk_full_is_told(), temporary.open("w") as file:
                file.write(owner)
                file.flush()
                os.fsync(file.fileno())
            # Whole or not at all, and of two at once only one.
            with suppress(FileExistsError):
                place.hardlink_to(temporary)
                _sync_folder(self.root)
        finally:
            temporary.unlink()
        return place.read_text()

    @property
    def owner_place(self) -> str:
        """Where it is written whose the store is, for operators."""
        return str(self.root / OWNER)

    def keep(self, sha: str) -> bool:
        """False when there is no such blob; else it counts as put now: nobody deletes it for what was earlier."""
        return self.is_digest(sha) and self._keep_existing(sha)

    def check(self) -> None:
        """Returns where files can be stored, and raises what `put` would otherwise."""
        with disk_full_is_told():
            temporary = self.temporary()
            try:
                with temporary.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, ROOM)
            finally:
                temporary.unlink()

    @staticmethod
    def is_digest(name: str) -> bool:
        return _DIGEST.fullmatch(name) is not None

    def temporary(self, suffix: str = "") -> Path:
        """A new empty file inside the store, to be written and then handed to `put_file`."""
        handle, name = tempfile.mkstemp(dir=self._tmp, suffix=suffix)
        os.close(handle)
        return Path(name)

    def path(self, sha: str) -> Path:
        """Where the blob lies, for reading. Raises NotFound; never leaves the store, whatever `sha` is."""
        place = self._place(sha) if self.is_digest(sha) else None
        if place is None or not place.is_file():
            raise NotFound(f"No stored file has the digest {sha[:64]!r}.")
        return place

    def has(self, sha: str) -> bool:
        return self.is_digest(sha) and self._place(sha).is_file()

    def read(self, sha: str) -> bytes:
        """The bytes of a blob. Raises NotFound."""
        try:
            return self.path(sha).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"No stored file has the digest {sha!r}.") from None

    def delete(self, sha: str, *, last_put_before: float | None = None) -> bool:
        """Removes a blob and says whether it was there to be removed.

        last_put_before  unix seconds: a blob that somebody has put again since then stays. Whoever found that nothing
                         refers to a blob any more passes the time of that finding's youngest reference, and so cannot
                         take the blob from a request that has just put it and not yet written its job.
        """
        if not self.is_digest(sha):
            return False
        place = self._place(sha)
        with self._lock(fcntl.LOCK_EX):
            if not place.is_file():
                return False
            if last_put_before is not None and place.stat().st_mtime >= last_put_before:
                return False
            place.unlink()
            return True

    def sweep(self, keep: Callable[[str], bool], older_than_s: float) -> int:
        """Removes blobs that `keep` does not want, and leftovers of writers that died; returns how many blobs.

        Only what was last put more than `older_than_s` seconds ago is asked about at all.
        """
        before = time.time() - older_than_s
        self._sweep_temporary(before)
        unwanted = [sha for sha in self._put_before(before) if not keep(sha)]
        return sum(self.delete(sha, last_put_before=before) for sha in unwanted)

    def _sweep_temporary(self, before: float) -> None:
        for leftover in self._tmp.iterdir():
            with suppress(FileNotFoundError):
                if leftover.stat().st_mtime < before:
                    leftover.unlink()

    def _put_before(self, moment: float) -> Iterator[str]:
        for blob in self.root.glob("[0-9a-f][0-9a-f]/*"):
            # Another process may delete while this one looks.
            with suppress(FileNotFoundError):
                if self.is_digest(blob.name) and blob.stat().st_mtime < moment:
                    yield blob.name

    def _place(self, sha: str) -> Path:
        return self.root / sha[:2] / sha

    def _keep_existing(self, sha: str) -> bool:
        """True when the blob is there; it then counts as put now, so that no sweep takes it from this caller."""
        with self._lock(fcntl.LOCK_SH):
            try:
                _touch(self._place(sha))
            except FileNotFoundError:
                return False
        # Whoever put it first may not have got as far as this yet.
        _sync_folder(self._place(sha).parent)
        return True

    def _write(self, data: bytes, sha: str) -> None:
        temporary = self.temporary()
        try:
            temporary.write_bytes(data)
            self._commit(temporary, sha)
        finally:
            temporary.unlink(missing_ok=True)

    def _commit(self, temporary: Path, sha: str) -> None:
        place = self._place(sha)
        with temporary.open("rb+") as file:
            os.fchmod(file.fileno(), 0o444)
            _touch(temporary)
            os.fsync(file.fileno())
        with self._lock(fcntl.LOCK_SH):
            try:
                place.parent.mkdir()
            except FileExistsError:
                pass
            else:
                _sync_folder(self.root)
            temporary.rename(place)
        _sync_folder(place.parent)

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        """Puts share it, a removal has it alone: between looking at a blob's age and unlinking it nobody puts it."""
        with (self.root / "lock").open("a") as file:
            fcntl.flock(file, kind)
            yield


def _touch(path: Path) -> None:
    """Sets the times from the clock that callers compare with; the kernel's own stamp lags it by up to a tick."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def disk_full_is_told() -> Iterator[None]:
    """Raises ServeError 507 for a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise disk_full() from error


def disk_full() -> ServeError:
    return ServeError(
        "The server's disk is full, so the file cannot be stored; try again later.",
        status=507,
        code="storage_full",
    )
