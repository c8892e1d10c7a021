"""Where adapters are kept: canonical files under their digest, and labels of several versions that name them."""

import fcntl
import hashlib
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from videoserve_lora.label import Label, Taken, Version

DIGEST = re.compile(r"[0-9a-f]{64}")


class AdapterStore:
    """root/files/<two digits>/<digest>.safetensors, read-only; root/labels/<hash of scope and name>.json.

    A file is whole or absent, also after a power cut. Names never stand in a path. A scope is whoever may see a label;
    who owns what, and how much, is the caller's matter. Several processes may share the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._tmp = root / "tmp"
        for folder in (self._tmp, root / "files", root / "labels"):
            folder.mkdir(parents=True, exist_ok=True)

    def temporary(self) -> Path:
        """A new empty file inside the store, for a canonical file that is then handed to `put`."""
        handle, name = tempfile.mkstemp(dir=self._tmp, suffix=".safetensors")
        os.close(handle)
        return Path(name)

    def put(self, path: Path) -> str:
        """Moves a canonical file from `temporary()` into the store and returns its digest; twice is once.

        A file that is there already and damaged is replaced.
        """
        digest = sha256(path)
        place = self._place(digest)
        with self._lock():
            if place.is_file() and sha256(place) == digest:
                path.unlink()
                # A sweep goes by when a file was last put.
                os.utime(place)
                return digest
            path.chmod(0o444)
            with path.open("rb") as file:
                os.fsync(file.fileno())
            os.utime(path)
            place.parent.mkdir(exist_ok=True)
            path.rename(place)
            for folder in (place.parent, place.parent.parent):
                sync(folder)
        return digest

    def path(self, digest: str) -> Path:
        """Where an adapter lies, for reading. KeyError, a sentence."""
        if not DIGEST.fullmatch(digest) or not self._place(digest).is_file():
            raise absent(digest)
        return self._place(digest)

    def has(self, digest: str) -> bool:
        return DIGEST.fullmatch(digest) is not None and self._place(digest).is_file()

    def whole(self, digest: str) -> bool:
        """Whether its bytes are still those it is named after. KeyError."""
        return sha256(self.path(digest)) == digest

    def label(
        self, scope: str, name: str, digest: str, *, about: Mapping[str, Any] | None = None, replace: bool = False
    ) -> Version:
        """Names an adapter, with what is to be told of it; the same one again is the version it already is.

        ValueError for a name that is none; Taken for a name of another adapter, unless it is to get a new version;
        KeyError for a digest that is not here.
        """
        place = self._label_place(scope, name)
        with self._lock():
            if not self.has(digest):
                raise absent(digest)
            known = self._read(place)
            if known and known.alias_of is not None:
                raise Taken(f"The name {name!r} is an alias that stands for {known.alias_of!r}; remove it first.")
            versions = known.versions if known else ()
            if versions and versions[-1].digest == digest:
                return versions[-1]
            if known and not replace:
                raise Taken(f"The name {name!r} is taken by another adapter; say replace to give it a new version.")
            number = versions[-1].number + 1 if versions else 1
            version = Version(number=number, digest=digest, added=time.time(), about=dict(about or {}))
            self._write(place, Label(scope=scope, name=name, versions=(*versions, version)))
        return version

    def resolve(self, scope: str, name: str) -> Version:
        """The newest version of a name, that of name@number, or of what an alias stands for. KeyError, a sentence."""
        plain, at, number = name.partition("@")
        label = self.get(scope, plain)
        if label.alias_of is not None and not at:
            return self.resolve(scope, label.alias_of)
        found = [each for each in label.versions if not at or str(each.number) == number]
        if not found:
            raise KeyError(f"No version {number!r} of the adapter {plain!r} is here.")
        return found[-1]

    def get(self, scope: str, name: str) -> Label:
        """KeyError, a sentence."""
        try:
            label = self._read(self._label_place(scope, name))
        except ValueError:
            label = None
        if label is None:
            raise KeyError(f"No adapter is called {name[:64]!r}.")
        return label

    def alias(self, scope: str, name: str, of: str) -> None:
        """Lets a name stand for another, or for one version of it (name@number); anew is allowed. Taken; KeyError."""
        place = self._label_place(scope, name)
        with self._lock():
            self.resolve(scope, of)
            if self.get(scope, of.partition("@")[0]).alias_of is not None:
                raise Taken(f"{of!r} is an alias itself; an alias stands for an adapter.")
            known = self._read(place)
            if known and known.alias_of is None:
                raise Taken(f"The name {name!r} is an adapter's own; an alias needs another.")
            self._write(place, Label(scope=scope, name=name, versions=(), alias_of=of))

    def remove(self, scope: str, name: str) -> None:
        """Forgets a label or an alias; the files go with the next sweep. KeyError. Aliases of it lead nowhere then."""
        with self._lock():
            self.get(scope, name)
            self._forget(self._label_place(scope, name))

    def labels(self, scope: str | None = None) -> list[Label]:
        """All labels, or those of a scope, by name."""
        return sorted((label for label in self._every() if scope in (None, label.scope)), key=lambda label: label.name)

    def keep(self, digest: str) -> None:
        """Counts as put now: no sweep that looked before takes it from this caller. KeyError, a sentence."""
        with self._lock():
            # From the clock that a sweep compares with; the kernel's own stamp lags it by up to a tick.
            now = time.time_ns()
            os.utime(self.path(digest), ns=(now, now))

    def sweep(self, keep: Callable[[str], bool], *, older_than_s: float) -> int:
        """Removes the files that no label names and `keep` does not want; returns how many. What is young stays.

        `keep` is asked without the lock: what was named or put meanwhile stays as well.
        """
        before = time.time() - older_than_s
        unwanted = [digest for digest in self._loose(before) if not keep(digest)]
        with self._lock():
            loose = self._loose(before)
            for digest in (gone := loose & set(unwanted)):
                self._drop(digest)
            for left in self._tmp.iterdir():
                with suppress(FileNotFoundError):
                    if left.stat().st_mtime < before:
                        left.unlink()
        return len(gone)

    def discard(self, digest: str) -> None:
        """Removes a file that no label names, at once: of a caller who has put it for itself alone."""
        with self._lock():
            if digest in self._loose(math.inf):
                self._drop(digest)

    def _loose(self, before: float) -> set[str]:
        """The digests of files put before that moment which no label names."""
        named = {version.digest for label in self.labels() for version in label.versions}
        old = set()
        for file in (self.root / "files").glob("*/*.safetensors"):
            # Another process may remove one while this one looks.
            with suppress(FileNotFoundError):
                if file.stem not in named and file.stat().st_mtime < before:
                    old.add(file.stem)
        return old

    def _drop(self, digest: str) -> None:
        self._place(digest).unlink()

    def _place(self, digest: str) -> Path:
        return self.root / "files" / digest[:2] / f"{digest}.safetensors"

    def _label_place(self, scope: str, name: str) -> Path:
        Label.check(name)
        hashed = hashlib.sha256(f"{len(scope)}:{scope}{name}".encode()).hexdigest()
        return self.root / "labels" / f"{hashed}.json"

    def _every(self) -> list[Label]:
        # Another process may remove one while this one looks.
        return [label for place in (self.root / "labels").glob("*.json") if (label := self._read(place))]

    def _read(self, place: Path) -> Label | None:
        try:
            return Label.of_json(json.loads(place.read_text()))
        except FileNotFoundError:
            return None

    def _write(self, place: Path, label: Label) -> None:
        half = self._tmp / f"{place.name}.{os.getpid()}"
        with half.open("w") as file:
            json.dump(label.json(), file)
            file.flush()
            os.fsync(file.fileno())
        half.replace(place)
        sync(place.parent)

    def _forget(self, place: Path) -> None:
        place.unlink()
        sync(place.parent)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.root / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def absent(digest: str) -> KeyError:
    return KeyError(f"No adapter has the digest {digest[:64]!r}.")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
