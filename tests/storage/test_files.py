"""The file store keeps whole blobs, through concurrent writers, killed ones and full disks."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from videoserve.errors import NotFound, ServeError
from videoserve.storage.files import FileStore


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def _blobs(store: FileStore) -> list[Path]:
    return sorted(path for path in store.root.glob("??/*") if path.is_file())


def _age(store: FileStore, sha: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(store.path(sha), (then, then))


def _put(root: Path, data: bytes) -> str:
    return FileStore(root).put(data)


def test_bytes_come_back_by_their_digest(store: FileStore) -> None:
    sha = store.put(b"a picture")
    assert sha == hashlib.sha256(b"a picture").hexdigest()
    assert store.has(sha)
    assert store.read(sha) == b"a picture"
    assert store.path(sha).read_bytes() == b"a picture"
    assert FileStore(store.root).read(sha) == b"a picture"


def test_blobs_are_read_only_and_leave_nothing_behind(store: FileStore) -> None:
    sha = store.put(b"x" * 1000)
    store.put(b"x" * 1000)
    assert store.path(sha).stat().st_mode & 0o777 == 0o444
    assert len(_blobs(store)) == 1
    assert list((store.root / "tmp").iterdir()) == []


def test_empty_bytes_are_a_blob(store: FileStore) -> None:
    assert store.read(store.put(b"")) == b""


@pytest.mark.parametrize("name", ["", "0" * 63, "A" * 64, "../" * 30, "/etc/passwd", "a" * 63 + "\0", "f" * 4096])
def test_only_digests_name_files(store: FileStore, name: str) -> None:
    assert not store.has(name)
    assert not store.delete(name)
    with pytest.raises(NotFound):
        store.path(name)
    with pytest.raises(NotFound):
        store.read(name)


def test_delete(store: FileStore) -> None:
    sha = store.put(b"gone soon")
    assert store.delete(sha)
    assert not store.has(sha)
    assert not store.delete(sha)
    with pytest.raises(NotFound, match=sha):
        store.read(sha)


def test_put_file_moves(store: FileStore) -> None:
    path = store.temporary(".mp4")
    assert path.suffix == ".mp4"
    path.write_bytes(b"a video")
    inode = path.stat().st_ino
    sha = store.put_file(path)
    assert not path.exists()
    assert store.read(sha) == b"a video"
    assert store.path(sha).stat().st_ino == inode
    assert store.path(sha).stat().st_mode & 0o777 == 0o444


def test_put_file_of_known_bytes_removes_the_file(store: FileStore) -> None:
    sha = store.put(b"a video")
    path = store.temporary()
    path.write_bytes(b"a video")
    assert store.put_file(path) == sha
    assert not path.exists()
    assert len(_blobs(store)) == 1


def test_put_file_from_another_file_system(store: FileStore) -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir() or shared_memory.stat().st_dev == store.root.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    path = shared_memory / f"videoserve-test-{os.getpid()}"
    path.write_bytes(b"from afar")
    sha = store.put_file(path)
    assert not path.exists()
    assert store.read(sha) == b"from afar"


def test_flushed_before_it_is_named_and_the_name_after(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[tuple[str, str]] = []
    fsync, rename = os.fsync, Path.rename

    def note_sync(handle: int) -> None:
        happened.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))
        fsync(handle)

    def note_rename(path: Path, target: Path) -> Path:
        happened.append(("rename", path.name))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "rename", note_rename)
    sha = store.put(b"durable")
    temporary = next(name for what, name in happened if what == "rename")
    assert happened == [("sync", temporary), ("sync", store.root.name), ("rename", temporary), ("sync", sha[:2])]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("where", ["write", "fsync"])
def test_full_disk_is_a_sentence(store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, where: str) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    if where == "write":
        monkeypatch.setattr(Path, "write_bytes", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ServeError, match="disk is full") as caught:
        store.put(b"too much")
    assert (caught.value.status, caught.value.code) == (507, "storage_full")
    assert str(store.root) not in caught.value.message
    assert not store.has(hashlib.sha256(b"too much").hexdigest())
    assert list((store.root / "tmp").iterdir()) == []


def test_check(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.check()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ServeError, match="disk is full"):
        store.check()
    assert list((store.root / "tmp").iterdir()) == []


def test_other_disk_errors_stay_errors(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="input/output error"):
        store.put(b"lost")


def test_many_processes_put_the_same_bytes(store: FileStore) -> None:
    data = os.urandom(300_000)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        digests = set(pool.map(_put, [store.root] * 24, [data] * 24))
    assert digests == {hashlib.sha256(data).hexdigest()}
    assert len(_blobs(store)) == 1
    assert list((store.root / "tmp").iterdir()) == []


def test_readers_see_all_of_a_blob_or_none(store: FileStore) -> None:
    blobs = [os.urandom(2_000_000) for _ in range(8)]
    digests = [hashlib.sha256(data).hexdigest() for data in blobs]
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.extend(len(store.read(sha)) for sha in digests if store.has(sha))

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.put, blobs * 3))
    done.set()
    reader.join()
    assert seen
    assert set(seen) == {2_000_000}


def test_killed_writers_leave_only_whole_blobs(store: FileStore) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom videoserve.storage.files import FileStore\n"
        "store = FileStore(Path(sys.argv[1]))\nprint('up', flush=True)\nwhile True: store.put(os.urandom(1_000_000))\n"
    )
    for delay in (0.02, 0.05, 0.08):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(store.root)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(delay)
            writer.kill()
    blobs = _blobs(store)
    assert blobs
    for blob in blobs:
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    for leftover in (store.root / "tmp").iterdir():
        os.utime(leftover, (0, 0))
    assert store.sweep(lambda sha: True, 60) == 0
    assert list((store.root / "tmp").iterdir()) == []
    assert _blobs(store) == blobs


def test_sweep_takes_what_is_old_and_unwanted(store: FileStore) -> None:
    old, wanted, young = (store.put(name) for name in (b"old", b"wanted", b"young"))
    _age(store, old, 100)
    _age(store, wanted, 100)
    asked: list[str] = []

    def keep(sha: str) -> bool:
        asked.append(sha)
        return sha == wanted

    assert store.sweep(keep, 50) == 1
    assert (store.has(old), store.has(wanted), store.has(young)) == (False, True, True)
    assert sorted(asked) == sorted((old, wanted))


def test_sweep_spares_files_being_written(store: FileStore) -> None:
    path = store.temporary()
    store.sweep(lambda sha: False, 50)
    assert path.exists()
    os.utime(path, (0, 0))
    store.sweep(lambda sha: False, 50)
    assert not path.exists()


def test_putting_again_makes_a_blob_young(store: FileStore) -> None:
    sha = store.put(b"again")
    _age(store, sha, 100)
    store.put(b"again")
    assert store.sweep(lambda sha: False, 50) == 0
    assert store.has(sha)


def test_a_blob_put_while_the_sweep_looks_stays(store: FileStore) -> None:
    sha = store.put(b"in flight")
    _age(store, sha, 100)

    def nobody_refers_yet(_: str) -> bool:
        store.put(b"in flight")
        return False

    assert store.sweep(nobody_refers_yet, 50) == 0
    assert store.has(sha)


def test_delete_spares_a_blob_put_since(store: FileStore) -> None:
    sha = store.put(b"shared picture")
    found_unused = time.time()
    store.put(b"shared picture")
    assert not store.delete(sha, last_put_before=found_unused)
    assert store.has(sha)
    assert store.delete(sha, last_put_before=time.time())


def test_put_and_delete_at_once_never_lose_a_put(store: FileStore) -> None:
    """Every put is followed by the blob being there, while others delete whatever was put before they looked."""
    data, done = b"contended" * 100, threading.Event()

    def remove() -> None:
        sha = hashlib.sha256(data).hexdigest()
        while not done.is_set():
            store.delete(sha, last_put_before=time.time() - 0.5)

    removers = [threading.Thread(target=remove) for _ in range(3)]
    for remover in removers:
        remover.start()
    missing = 0
    for _ in range(150):
        sha = store.put(data)
        missing += not store.has(sha)
        with suppress(NotFound):
            _age(store, sha, 1)
    done.set()
    for remover in removers:
        remover.join()
    assert missing == 0


def test_keep_saves_from_a_deletion_that_began_before(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    sha = store.put(b"a picture")
    began = time.time()
    assert store.keep(sha)
    assert not store.delete(sha, last_put_before=began)
    assert store.delete(sha)
    assert not store.keep(sha)
    assert not store.keep("../" + sha)


def test_of_many_at_once_one_owns_the_store(store: FileStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        owners = set(pool.map(store.claim, [f"redis-{number}" for number in range(40)]))
    assert len(owners) == 1
    assert FileStore(store.root).claim("later") in owners
    # It is no blob, and nothing is left behind.
    assert store.sweep(lambda sha: False, -1) == 0
    assert FileStore(store.root).claim("later") in owners
    assert list(store.root.glob("tmp/*")) == []
