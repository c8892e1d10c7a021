"""Writes down what happens in a cache, so that other policies and sizes can be tried on it later."""

import fcntl
import hmac
import logging
import os
import secrets
import time
from pathlib import Path
from typing import Final

from videoserve_cache.index.key import Key
from videoserve_cache.trace.file import Header
from videoserve_cache.trace.line import ENTRY_DIGITS, WHATS, Line

log = logging.getLogger(__name__)

SECRET_BYTES: Final = 32


class Recorder:
    """Appends to one file, together with the other processes that record into it; safe to use from any thread.

    Digests are keyed with the file's nonce and with a secret in a file beside it, suffix .key, which is not to be
    passed on: entries can be told apart within a trace, and neither be recognised nor found again in another one.
    Once the trace has `limit` bytes, nothing more is added.
    """

    def __init__(self, path: Path, *, limit: int):
        """Begins the trace or goes on with it. Raises ValueError, a sentence, where something else is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._limit = limit
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            self._secret = _secret(path.with_suffix(".key"))
            header = self._header(path)
        except ValueError:
            self.close()
            raise
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._salt = self._keyed("entries", header.nonce)
        self._began = header.began - self._shift(header.nonce)

    def on_event(self, what: str, key: Key | None, tier: str, size: int, cost_s: float) -> None:
        """Adds what a `SharedCache` tells of look-ups and puts; the rest is left out.

        A disk that takes no more ends the recording, never the work that is recorded.
        """
        if self._fd < 0 or key is None or what not in WHATS:
            return
        entry = hmac.digest(self._salt, key.name.encode(), "sha256").hex()[:ENTRY_DIGITS]
        at = max(0.0, time.time() - self._began)
        line = Line(at=at, what=what, kind=key.kind, entry=entry, tier=tier, size=size, cost_s=cost_s)  # type: ignore[arg-type]
        text = f"{line.to_json()}\n".encode()
        try:
            if os.fstat(self._fd).st_size + len(text) <= self._limit:
                # One write to a file that is only appended to: lines of several processes do not mix.
                os.write(self._fd, text)
        except OSError as error:
            log.warning("the trace of the cache ends here", extra={"reason": error.strerror})
            self.close()

    def close(self) -> None:
        """Later events are not recorded."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _header(self, path: Path) -> Header:
        first = os.pread(self._fd, 4096, 0).decode(errors="replace").partition("\n")[0]
        if first:
            return Header.from_json(first, path)
        nonce = secrets.token_hex(16)
        header = Header(nonce=nonce, began=round(time.time() + self._shift(nonce), 2))
        os.write(self._fd, f"{header.to_json()}\n".encode())
        return header

    def _shift(self, nonce: str) -> float:
        """Seconds by which the beginning is moved: with the true time a trace could be joined with other logs."""
        return float(int.from_bytes(self._keyed("time", nonce)[:4]))

    def _keyed(self, use: str, nonce: str) -> bytes:
        return hmac.digest(self._secret, f"videoserve cache trace {use} {nonce}".encode(), "sha256")


def _secret(path: Path) -> bytes:
    """That of the file; made where there is none yet, or none whole."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "a+b") as file:
        file.seek(0)
        found = file.read()
        if len(found) != SECRET_BYTES:
            file.truncate(0)
            found = secrets.token_bytes(SECRET_BYTES)
            file.write(found)
        return found
