"""What a supervisor is made of: children that are kept alive, the folder's lock, the socket, Redis."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis

from videoserve.broker import EmbeddedRedis
from videoserve.config import EXIT_REFUSED, Settings
from videoserve.janitor import ForeignFiles
from videoserve.supervisor import process as process_module
from videoserve.supervisor.folder import FolderInUse, FolderLock
from videoserve.supervisor.listen import CannotListen, listen, url_of
from videoserve.supervisor.process import Process, ProcessRefused
from videoserve.supervisor.redis_keeper import RedisKeeper, running_url
from videoserve.supervisor.supervisor import CannotServe, Supervisor, chats_of, threads_each

pytestmark = pytest.mark.anyio

SLEEPS = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def child(code: str) -> Process:
    return Process("child", (sys.executable, "-c", code), dict(os.environ))


async def until(reached: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not reached():
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def ignores_sigterm(pid: int | None) -> bool:
    (mask,) = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) & 1 << signal.SIGTERM - 1)


async def test_a_killed_child_is_started_again() -> None:
    process = child(SLEEPS)
    keeping = asyncio.create_task(process.keep())
    await until(lambda: process.pid is not None)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: process.pid not in (None, first))
    assert process.starts == 2
    second = process.pid
    assert second is not None
    await process.stop(grace_s=10)
    await keeping
    assert not alive(second)


async def test_the_pause_doubles_while_a_child_keeps_ending_early(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    pause = Process._pause

    async def noted(self: Process, seconds: float) -> None:
        pauses.append(seconds)
        await pause(self, 0.001)

    monkeypatch.setattr(Process, "_pause", noted)
    monkeypatch.setattr(process_module, "LONGEST_PAUSE_S", 0.3)
    process = Process("child", ("/bin/false",), {})
    keeping = asyncio.create_task(process.keep())
    await until(lambda: len(pauses) == 5)
    await process.stop(grace_s=10)
    await keeping
    assert pauses[:4] == [0.1, 0.2, 0.3, 0.3]


async def test_a_child_that_refuses_is_not_started_again() -> None:
    process = child(f"raise SystemExit({EXIT_REFUSED})")
    with pytest.raises(ProcessRefused, match="cannot run with these settings"):
        await process.keep()
    assert process.starts == 1


async def test_a_child_deaf_to_sigterm_is_killed_after_its_grace() -> None:
    process = child(DEAF)
    keeping = asyncio.create_task(process.keep())
    await until(lambda: process.pid is not None)
    await until(lambda: ignores_sigterm(process.pid))
    began = time.monotonic()
    await process.stop(grace_s=0.3)
    await keeping
    assert time.monotonic() - began >= 0.3


async def test_stop_ends_the_pause_before_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "FIRST_PAUSE_S", 600.0)
    process = Process("child", ("/bin/false",), {})
    keeping = asyncio.create_task(process.keep())
    await until(lambda: process.starts == 1 and process.pid is None)
    await process.stop(grace_s=1)
    await asyncio.wait_for(keeping, 5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_code = f"""
import asyncio, os, sys
from pathlib import Path
from videoserve.supervisor.process import Process
from videoserve.broker.server import EmbeddedRedis
async def main():
    redis = EmbeddedRedis(Path({str(tmp_path)!r})).start()
    process = Process("child", (sys.executable, "-c", {SLEEPS!r}), dict(os.environ))
    keeping = asyncio.create_task(process.keep())
    while process.pid is None:
        await asyncio.sleep(0.01)
    print(process.pid, redis.process.pid, flush=True)
    await keeping
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        parent.kill()
    end = time.monotonic() + 60
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(alive(pid) for pid in pids)


def test_a_second_server_is_kept_out_of_the_folder_until_the_first_is_gone(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path / "data"), FolderLock(tmp_path / "data")
    first.take()
    with pytest.raises(FolderInUse, match=rf"in use by another server \(process {os.getpid()}\)"):
        second.take()
    first.drop()
    second.take()
    second.drop()


def test_servers_that_share_a_folder_keep_one_out_that_shares_nothing(tmp_path: Path) -> None:
    shared, too, alone = FolderLock(tmp_path, shared=True), FolderLock(tmp_path, shared=True), FolderLock(tmp_path)
    shared.take()
    too.take()
    with pytest.raises(FolderInUse):
        alone.take()
    shared.drop()
    too.drop()
    alone.take()
    with pytest.raises(FolderInUse):
        shared.take()
    alone.drop()


def test_a_taken_port_a_strange_host_and_a_foreign_address_are_sentences() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"Port {port} on 127.0.0.1 is taken"):
            listen("127.0.0.1", port)
    with pytest.raises(CannotListen, match=r"'no\.such\.host\.invalid' is not an address"):
        listen("no.such.host.invalid", 0)
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1 is not an address of this machine"):
        listen("192.0.2.1", 0)


def test_the_url_is_one_this_machine_can_reach() -> None:
    with listen("0.0.0.0", 0) as server:
        assert url_of(server) == f"http://127.0.0.1:{server.getsockname()[1]}"
    with listen("localhost", 0) as server:
        assert url_of(server).rpartition(":")[0] in ("http://127.0.0.1", "http://[::1]")


async def test_redis_is_started_again_where_it_was_with_all_it_knew(tmp_path: Path) -> None:
    keeper = RedisKeeper(tmp_path)
    keeper.start()
    url = keeper.url
    assert running_url(tmp_path) == url
    keeping = asyncio.create_task(keeper.keep())
    try:
        assert command(url, b"SET k v") == b"+OK"
        first = keeper._pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: keeper._pid() not in (None, first))
        assert keeper.url == url
        assert command(url, b"GET k") == b"v"
    finally:
        keeping.cancel()
        keeper.stop()
    with pytest.raises(ValueError, match="say --redis-url"):
        running_url(tmp_path)


def command(url: str, words: bytes) -> bytes:
    """The last line of Redis' answer to one inline command."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(url.removeprefix("unix://"))
        client.sendall(words + b"\r\n")
        return client.recv(1000).strip().rpartition(b"\n")[2]


async def test_an_open_address_without_keys_is_refused_before_anything_listens_there(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, host="0.0.0.0", port=0)
    with pytest.raises(CannotServe, match="--insecure"):
        await Supervisor(settings).run()
    # Everything it had begun is gone again.
    assert not (tmp_path / "redis" / "redis.sock").exists()
    lock = FolderLock(tmp_path)
    lock.take()
    lock.drop()


def test_workers_share_the_cores_unless_told_otherwise(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_each(Settings(data=tmp_path, workers=1)) == cores
    assert threads_each(Settings(data=tmp_path, workers=2)) == max(1, cores // 2)
    assert threads_each(Settings(data=tmp_path, workers=64)) == max(1, cores // 64)
    assert threads_each(Settings(data=tmp_path, workers=2, threads=5)) == 5


def test_a_server_without_a_chat_model_has_no_chat_workers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        assert chats_of(Settings(data=tmp_path, chat_model="none", chat_workers=2)) == 0
    assert "Chat is off: chat_model is none." in caplog.messages
    assert chats_of(Settings(data=tmp_path, chat_model=str(tmp_path), chat_workers=2)) == 2
    with pytest.raises(ValueError, match="There is no chat model 'nowhere'"):
        chats_of(Settings(data=tmp_path, chat_model="nowhere"))


async def test_a_folder_of_another_redis_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each would sweep away what the other's jobs need."""
    data = tmp_path / "data"
    sentence = f"The files beside {data}/files/owner belong to the jobs of another Redis"
    (tmp_path / "redis").mkdir()
    with EmbeddedRedis(tmp_path / "redis") as redis:
        with Redis.from_url(redis.url) as client:
            client.config_set("appendfsync", "everysec")
        ours = Settings(data=data, port=0, workers=0, chat_model="none", redis_url=redis.url)
        first = Supervisor(ours)
        running = asyncio.create_task(first.run())
        await until(lambda: bool(first._apis and first._apis[0].pid))
        (tmp_path / "other").mkdir()
        with EmbeddedRedis(tmp_path / "other") as other, pytest.raises(ForeignFiles, match=sentence):
            await Supervisor(ours.model_copy(update={"redis_url": other.url})).run()
        assert not running.done()
        first._stop.set()
        await running
    # What this Redis may lose was told as well.
    assert [r.message for r in caplog.records if "appendfsync everysec" in r.message]
    # Nor is it the folder of a private one.
    with pytest.raises(ForeignFiles, match=sentence):
        await Supervisor(ours.model_copy(update={"redis_url": None})).run()


async def test_servers_with_a_redis_of_their_own_elsewhere_share_a_folder(tmp_path: Path) -> None:
    """Two API replicas: one Redis, one folder of results; each is up while the other is."""
    keeper = RedisKeeper(tmp_path / "redis")
    (tmp_path / "redis").mkdir()
    keeper.start()
    try:
        settings = Settings(data=tmp_path / "data", port=0, workers=0, chat_model="none", redis_url=keeper.url)
        replicas = [Supervisor(settings), Supervisor(settings)]
        runs = [asyncio.create_task(replica.run()) for replica in replicas]
        await until(lambda: all(replica._apis and replica._apis[0].pid for replica in replicas))
        assert not any(run.done() for run in runs)
        for replica in replicas:
            replica._stop.set()
        await asyncio.gather(*runs)
    finally:
        keeper.stop()
