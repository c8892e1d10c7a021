"""Anything in any order, by nodes that share an index and are killed at any moment: right bytes or none, books that
balance, limits that are kept, and nothing left behind."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from videoserve.broker import EmbeddedRedis
from videoserve_cache.tiers import Hit, Key, Limits, SharedCache

MakeNode = Callable[..., SharedCache]
LIMITS = {"memory": 4_000, "disk": 9_000}
FIXED = {b"size", b"cost", b"freq"}


def content(digest: str) -> bytes:
    """What belongs to a digest: 300 to 2100 bytes."""
    chance = random.Random(digest)
    return chance.randbytes(chance.randint(300, 2100))


def key_of(number: int) -> Key:
    """Some digests have the same bytes, some kinds the same models."""
    return Key(
        kind=("boundary", "final_latent", "text_emb")[number % 3],
        digest=hashlib.sha256(b"%d" % number).hexdigest(),
        tenant=f"t{number % 2}",
        model=f"m{number % 4}",
        loras=tuple(f"l{lora}" for lora in range(number % 3)),
    )


def books_balance(client: Redis) -> None:
    """Every key of the index agrees with all others."""
    names = {name.removeprefix(b"e:"): client.hgetall(name) for name in client.scan_iter("e:*")}
    blobs = {name.removeprefix(b"loc:"): client.hgetall(name) for name in client.scan_iter("loc:*")}
    listed: dict[bytes, set[bytes]] = {}
    for name, entry in names.items():
        kind, _, digest = name.partition(b":")
        listed.setdefault(b"of:" + entry[b"sha"], set()).add(name)
        listed.setdefault(b"idx:kind:" + kind, set()).add(digest)
        listed.setdefault(b"idx:model:" + entry[b"model"], set()).add(name)
        listed.setdefault(b"idx:tenant:" + entry[b"tenant"], set()).add(name)
        for lora in entry[b"loras"].split():
            listed.setdefault(b"idx:lora:" + lora, set()).add(name)
        if b"prefix" in entry:
            listed.setdefault(b"idx:prefix:" + kind + b":" + entry[b"prefix"], set()).add(digest)
    found = {}
    for name in [*client.scan_iter("of:*"), *client.scan_iter("idx:*")]:
        ranked = name.startswith((b"idx:kind", b"idx:prefix"))
        found[name] = set(client.zrange(name, 0, -1) if ranked else client.smembers(name))
    assert found == listed
    assert {entry[b"sha"] for entry in names.values()} == set(blobs)

    queues: dict[bytes, set[bytes]] = {}
    for sha, blob in blobs.items():
        replicas = {field for field in blob if field not in FIXED}
        assert replicas
        for field in replicas:
            tier, _, node = field.removeprefix(b"@").partition(b" ")
            queues.setdefault(node + b":" + tier, set()).add(sha)
    assert {name.removeprefix(b"q:"): set(client.zrange(name, 0, -1)) for name in client.scan_iter("q:*")} == queues
    for name in client.scan_iter("b:*"):
        shas = queues.get(name.removeprefix(b"b:"), set())
        assert int(client.hget(name, "bytes")) == sum(int(blobs[sha][b"size"]) for sha in shas)  # type: ignore[arg-type]


def files_agree(client: Redis, node: str, folders: dict[str, Path]) -> None:
    for tier, folder in folders.items():
        there = {path.name for path in folder.rglob("[0-9a-f][0-9a-f]/*")}
        assert there == {sha.decode() for sha in client.zrange(f"q:{node}:{tier}", 0, -1)}
        assert sum(path.stat().st_size for path in folder.rglob("[0-9a-f][0-9a-f]/*")) <= LIMITS[tier]
        assert [*(folder / "tmp").iterdir()] == []


def folders_of(cache: SharedCache) -> dict[str, Path]:
    return {tier: blobs.root for tier, blobs in cache._here.node.tiers.items()}


@pytest.mark.parametrize("seed", range(3))
def test_anything_in_any_order(seed: int, make_node: MakeNode, redis_url: str) -> None:
    chance = random.Random(seed)
    nodes = [make_node(name, memory_bytes=LIMITS["memory"], disk_bytes=LIMITS["disk"]) for name in "ab"]
    client = Redis.from_url(redis_url)
    pins: dict[Key, SharedCache] = {}
    held: list[Hit] = []
    hits = 0
    for turn in range(200):
        cache, key = chance.choice(nodes), key_of(chance.randrange(16))
        match chance.choices(
            ["put", "get", "flush", "pin", "unpin", "drop", "forget", "damage"], [20, 18, 4, 3, 3, 1, 1, 2]
        )[0]:
            case "put":
                about = {"prefix": f"p{chance.randrange(2)}", "position": chance.randrange(9)}
                cost_s = chance.choice([0.0, 0.1, 3.0])
                cache.put(key, content(key.digest), about=about, cost_s=cost_s, cls="E0")
            case "get":
                if (hit := cache.get(key)) is not None:
                    assert bytes(hit.content) == content(key.digest)
                    held = [*held, hit][-3:]
                    hits += 1
            case "flush":
                assert cache.flush()
            case "pin":
                if len(pins) < 2 and key not in pins and cache.pin(key.digest, 600):
                    pins[key] = cache
            case "unpin":
                for pinned, holder in [*pins.items()][:1]:
                    assert holder.unpin(pinned.digest)
                    del pins[pinned]
            case "drop":
                by = chance.choice(["model", "lora", "tenant", "digest"])
                value = {"model": key.model, "lora": "l1", "tenant": key.tenant, "digest": key.digest}[by]
                cache.drop(by, value)  # type: ignore[arg-type]
                pins = {pinned: holder for pinned, holder in pins.items() if holder.pin(pinned.digest, 600)}
            case "forget":
                if key not in pins:
                    cache.forget(key)
            case "damage":
                for folder in folders_of(cache).values():
                    for path in [*folder.rglob("[0-9a-f][0-9a-f]/*")][:1]:
                        if path.name not in {hashlib.sha256(content(pinned.digest)).hexdigest() for pinned in pins}:
                            chance.choice([path.unlink, lambda path=path: path.write_bytes(b"damaged")])()
        if turn % 5 == 0:
            books_balance(client)
        there = {row["digest"] for row in cache.entries(limit=100)[0]}
        assert {pinned.digest for pinned in pins} <= there
    assert hits > 10
    for cache in nodes:
        for key in map(key_of, range(24)):
            cache.get(key)
        cache._here.upkeep._due = 0
        assert cache.flush()
        assert cache.flush()
        files_agree(client, cache._setup.node, folders_of(cache))
    client.close()


# A process of a node that does what workers do, and checks every byte it gets, until it is killed.
PROCESS = """
import hashlib, random, sys, time
from pathlib import Path
from videoserve_cache.tiers import Key, Limits, SharedCache

url, folder, shm, node, seed, memory, disk = sys.argv[1:]
limits = Limits(memory_bytes=int(memory), disk_bytes=int(disk), shared_memory=Path(shm), patience_s=2.0, beat_s=0.05,
                grace_s=0.5)
cache = SharedCache.open(url, Path(folder), node=node, limits=limits, secret=b"secret", address=None)
chance = random.Random(seed)

def content(digest):
    chance = random.Random(digest)
    return chance.randbytes(chance.randint(300, 2100))

print("ready", flush=True)
while True:
    key = Key(kind="boundary", digest=hashlib.sha256(b"%d" % chance.randrange(12)).hexdigest(), tenant="t", model="m")
    hit = cache.get(key)
    if hit is None:
        cache.put(key, content(key.digest), about={}, cost_s=chance.random(), cls="E0")
    elif bytes(hit.content) != content(key.digest):
        print("WRONG", key.digest, hit.tier, flush=True)
    else:
        print("hit", flush=True)
"""


@pytest.mark.slow
def test_processes_are_killed_at_any_moment_and_redis_too(tmp_path: Path) -> None:
    chance = random.Random(1)
    shm = tmp_path / "shm"
    shm.mkdir()
    logs = [(tmp_path / f"log{number}").open("w") for number in range(3)]

    def start(number: int, url: str) -> subprocess.Popen[str]:
        node = "aab"[number]
        told = [url, str(tmp_path / node), str(shm), node, str(chance.random()), *map(str, LIMITS.values())]
        return subprocess.Popen([sys.executable, "-c", PROCESS, *told], stdout=logs[number], text=True)

    def busy(number: int, lines: int) -> None:
        """Waits until a process has found so many hits more."""
        log = tmp_path / f"log{number}"
        before, end = log.read_text().count("\n"), time.monotonic() + 60
        while log.read_text().count("\n") <= before + lines:
            assert time.monotonic() < end
            time.sleep(0.02)

    with EmbeddedRedis(tmp_path / "redis") as server:
        processes = [start(number, server.url) for number in range(3)]
        try:
            for turn in range(8):
                victim = chance.randrange(3)
                busy(victim, chance.randrange(8))
                if turn % 4 == 3:
                    assert server.process is not None
                    server.process.send_signal(signal.SIGKILL)
                    server.process.wait()
                    server.start()
                processes[victim].kill()
                assert processes[victim].wait() == -signal.SIGKILL
                processes[victim] = start(victim, server.url)
            for number in range(3):
                busy(number, 10)
            assert [process.poll() for process in processes] == [None] * 3
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for log in logs:
                log.close()
        told = "".join((tmp_path / f"log{number}").read_text() for number in range(3)).split("\n")
        assert [line for line in told if line.startswith("WRONG")] == []
        assert told.count("hit") > 50
        with Redis.from_url(server.url) as client:
            books_balance(client)
            for node in "ab":
                limits = Limits(
                    memory_bytes=LIMITS["memory"], disk_bytes=LIMITS["disk"], shared_memory=shm, patience_s=2.0,
                    beat_s=3600.0, grace_s=0.0,
                )  # fmt: skip
                cache = SharedCache.open(
                    server.url, tmp_path / node, node=node, limits=limits, secret=b"secret", address=None
                )
                assert cache.flush()
                assert cache.flush()
                files_agree(client, node, folders_of(cache))
                books_balance(client)
                cache.close()
