"""Redis is killed, stands still, forgets, comes back: hits of this node or misses, nobody waits, and it goes on."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from videoserve.broker import EmbeddedRedis
from videoserve_cache.tiers import Away, Key, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis of this test's own, which may be hurt."""
    with EmbeddedRedis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def open_node(server: EmbeddedRedis, make_node: MakeNode) -> MakeNode:
    return lambda name="a", **other: make_node(name, redis_url=server.url, **other)


def put(cache: SharedCache, key: Key, content: bytes = b"latents") -> bool:
    return cache.put(key, content, about={}, cost_s=1.0, cls="E0")


def got(cache: SharedCache, key: Key) -> bytes | None:
    hit = cache.get(key)
    return None if hit is None else bytes(hit.content)


def kill(server: EmbeddedRedis) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait()


def away(cache: SharedCache) -> bool:
    """Whether this process does without Redis at the moment."""
    return cache._here.node.link.breaker.is_open


def back(cache: SharedCache) -> None:
    end = time.monotonic() + 30
    while not cache.flush():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_killed_and_back(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    told: list[str] = []
    cache = open_node(on_event=lambda what, key, tier, size, seconds: told.append(what))
    put(cache, make_key("1"), b"one")
    kill(server)
    # This process knows what it put, and its node still has it.
    assert got(cache, make_key("1")) == b"one"
    assert away(cache)
    assert cache.get(make_key("2")) is None
    assert not cache.flush()
    with pytest.raises(Away):
        cache.stats()
    server.start()
    back(cache)
    assert not away(cache)
    assert told.count("rejoined") == 1
    assert got(cache, make_key("1")) == b"one"
    # What was used meanwhile is told.
    assert cache.stats()["counts"]["hits:final_latent:memory"] >= 1


def test_what_is_put_meanwhile_is_there_afterwards(
    server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey, tmp_path: Path
) -> None:
    cache, other = open_node("a"), open_node("a")
    kill(server)
    for name in "123":
        assert not put(cache, make_key(name), name.encode())
        assert got(cache, make_key(name)) == name.encode()
        assert got(other, make_key(name)) is None
    # Only so much: these files lie outside all limits.
    for number in range(40):
        put(cache, make_key(f"a{number}"), b"%d" % number)
    files = [*(tmp_path / "a" / "blobs").rglob("??/*")]
    # The numbers 1, 2 and 3 were there already.
    assert len(files) == 29
    server.start()
    for each in (cache, other):
        back(each)
    for name in "123":
        assert got(other, make_key(name)) == name.encode()
    assert cache.stats()["nodes"]["a"]["tiers"]["disk"]["blobs"] == 29


def test_another_tenant_sees_nothing_then_either(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    cache = open_node()
    put(cache, make_key(tenant="one"))
    kill(server)
    assert cache.get(make_key(tenant="two")) is None
    assert got(cache, make_key(tenant="one")) == b"latents"


def test_an_entry_that_was_dropped_is_not_remembered(
    server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey
) -> None:
    one, two = open_node("a"), open_node("a")
    for cache in (one, two):
        put(cache, make_key())
        cache.device.put(make_key().digest, object(), 1)
    assert one.drop("tenant", "t") == 1
    assert two.flush()
    kill(server)
    for cache in (one, two):
        assert cache.get(make_key()) is None
        assert cache.device.get(make_key().digest) is None


def test_away_from_the_start(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    kill(server)
    cache = open_node()
    assert cache.get(make_key()) is None
    server.start()
    back(cache)
    assert put(cache, make_key())
    assert got(cache, make_key()) == b"latents"


def test_one_that_stands_still_is_waited_for_once(
    server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey
) -> None:
    cache = open_node(patience_s=0.3)
    put(cache, make_key())
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert got(cache, make_key()) == b"latents"
        assert time.monotonic() - start >= 0.3
        assert away(cache)
        # 40 more would take 12 s if each of them waited.
        for _ in range(20):
            assert got(cache, make_key()) == b"latents"
            assert cache.get(make_key("2")) is None
        assert time.monotonic() - start < 10
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    back(cache)
    # The late answer to the first question is not taken for that to another.
    assert cache.get(make_key("2")) is None
    assert got(cache, make_key()) == b"latents"


def test_it_finds_its_way_back_by_itself(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    cache = open_node(beat_s=0.05)
    kill(server)
    assert cache.get(make_key()) is None
    server.start()
    end = time.monotonic() + 30
    while away(cache):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert put(cache, make_key())


def test_one_that_takes_no_writes(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    cache = open_node()
    put(cache, make_key("1"))
    with Redis.from_url(server.url) as client:
        client.config_set("maxmemory", 1)
        assert not put(cache, make_key("2"))
        assert got(cache, make_key("1")) == b"latents"
        client.config_set("maxmemory", 0)
    assert put(cache, make_key("2"))


def test_a_server_that_forgot_everything(server: EmbeddedRedis, open_node: MakeNode, make_key: MakeKey) -> None:
    cache = open_node()
    put(cache, make_key())
    kill(server)
    assert got(cache, make_key()) == b"latents"
    # A folder since Redis 7, a file before.
    for log in [*server.folder.rglob("appendonly*.aof*")]:
        log.unlink()
    for folder in server.folder.glob("appendonlydir"):
        folder.rmdir()
    server.start()
    back(cache)
    assert cache.get(make_key()) is None
    assert put(cache, make_key())
    assert got(cache, make_key()) == b"latents"
