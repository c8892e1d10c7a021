"""GDSF: what leaves a tier when room is needed, what never does, and that nothing is left of what left."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from redis import Redis

from videoserve_cache.tiers import Key, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]
SIZE = 1000
ROOM_FOR_3 = {"memory_bytes": 3 * SIZE + 500, "disk_bytes": 3 * SIZE + 500}


def content(name: str, size: int = SIZE) -> bytes:
    return name.encode().ljust(size, b".")


def put(cache: SharedCache, key: Key, *, cost_s: float = 1.0, size: int = SIZE) -> bool:
    return cache.put(key, content(key.digest[-1], size), about={}, cost_s=cost_s, cls="E0")


def kept(cache: SharedCache) -> str:
    """The last digits of the entries that are there."""
    return "".join(row["digest"][-1] for row in cache.entries()[0])


def files(folder: Path) -> int:
    return len([*folder.rglob("[0-9a-f][0-9a-f]/*")])


def test_the_cheapest_leaves_first(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node(**ROOM_FOR_3)
    for name, cost_s in (("1", 5.0), ("2", 1.0), ("3", 9.0), ("4", 3.0)):
        assert put(cache, make_key(name), cost_s=cost_s)
    assert kept(cache) == "134"
    assert cache.get(make_key("2")) is None


def test_of_equal_cost_the_largest_leaves_first(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node(**ROOM_FOR_3)
    put(cache, make_key("1"), size=900)
    put(cache, make_key("2"), size=1400)
    put(cache, make_key("3"), size=1000)
    put(cache, make_key("4"), size=1200)
    assert kept(cache) == "134"


def test_what_was_used_stays_and_what_was_used_long_ago_ages(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node(**ROOM_FOR_3)
    for name in "123":
        put(cache, make_key(name))
    for _ in range(3):
        assert cache.get(make_key("1")) is not None
    cache.flush()
    for name in "4567":
        put(cache, make_key(name))
        cache.flush()
        assert "1" in kept(cache)
    # Each eviction raises the floor by what newcomers are worth; in the end three old uses are worth less.
    for name in "89abcdef":
        put(cache, make_key(name))
    assert "1" not in kept(cache)


def test_tiers_keep_their_limits(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node(memory_bytes=2 * SIZE, disk_bytes=5 * SIZE)
    for name in "123456789":
        put(cache, make_key(name))
        tiers = cache.stats()["nodes"]["a"]["tiers"]
        assert tiers["memory"]["bytes"] <= 2 * SIZE
        assert tiers["disk"]["bytes"] <= 5 * SIZE
    assert files(tmp_path / "shm") == 2
    assert files(tmp_path / "a" / "blobs") == 5
    assert cache.stats()["counts"] == {"evicted:final_latent:memory": 7, "evicted:final_latent:disk": 4}


def test_what_leaves_memory_is_on_disk_and_comes_back_with_its_next_use(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node(memory_bytes=SIZE, disk_bytes=5 * SIZE)
    put(cache, make_key("1"), cost_s=1.0)
    put(cache, make_key("2"), cost_s=1.5)
    tiers = []
    for _ in range(2):
        hit = cache.get(make_key("1"))
        assert hit is not None
        assert bytes(hit.content) == content("1")
        tiers.append(hit.tier)
        hit.close()
        cache.flush()
    assert tiers == ["disk", "memory"]


def test_a_blob_larger_than_a_tier_goes_elsewhere(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node(memory_bytes=SIZE - 1, disk_bytes=5 * SIZE)
    assert put(cache, make_key("1"))
    hit = cache.get(make_key("1"))
    assert hit is not None
    assert hit.tier == "disk"
    assert not put(cache, make_key("2"), size=6 * SIZE)
    assert kept(cache) == "1"


def test_pinned_entries_are_never_evicted(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node(**ROOM_FOR_3)
    for name in "12":
        put(cache, make_key(name), cost_s=0.001)
        assert cache.pin(make_key(name).digest, 60)
    for name in "3456":
        put(cache, make_key(name))
    assert kept(cache) == "126"
    assert cache.pin(make_key("6").digest, 60)
    # Nothing may leave: the newcomer is not kept, and none of its files either.
    assert not put(cache, make_key("7"))
    assert kept(cache) == "126"
    assert files(tmp_path / "a" / "blobs") == 3
    assert cache.unpin(make_key("1").digest)
    assert put(cache, make_key("7"))
    assert kept(cache) == "267"


def test_a_pin_of_what_is_not_there(make_node: MakeNode, make_key: MakeKey) -> None:
    assert not make_node().pin(make_key().digest, 60)


def test_pins_of_two_holders_are_two(make_node: MakeNode, make_key: MakeKey) -> None:
    one, two = make_node(**ROOM_FOR_3), make_node(**ROOM_FOR_3)
    put(one, make_key("1"), cost_s=0.001)
    assert one.pin(make_key("1").digest, 60)
    assert two.pin(make_key("1").digest, 60)
    assert one.unpin(make_key("1").digest)
    for name in "2345":
        put(one, make_key(name))
    assert "1" in kept(one)


def test_pins_end_by_themselves_and_leave_nothing(make_node: MakeNode, make_key: MakeKey, redis_url: str) -> None:
    cache = make_node(**ROOM_FOR_3)
    put(cache, make_key("1"), cost_s=0.001)
    assert cache.pin(make_key("1").digest, 0.05)
    with Redis.from_url(redis_url) as client:
        assert len(client.keys("pin:*")) == 1
        time.sleep(0.1)
        assert client.keys("pin:*") == []
    for name in "2345":
        put(cache, make_key(name))
    assert "1" not in kept(cache)


def test_what_a_reader_uses_is_pinned_until_it_is_done(make_node: MakeNode, make_key: MakeKey, redis_url: str) -> None:
    cache = make_node(**ROOM_FOR_3)
    put(cache, make_key("1"), cost_s=0.001)
    hit = cache.get(make_key("1"))
    assert hit is not None
    cache.flush()
    for name in "2345":
        put(cache, make_key(name))
    assert "1" in kept(cache)
    with Redis.from_url(redis_url) as client:
        (pin,) = client.keys("pin:*")
        # A reader that dies now pins for ten beats.
        assert 0 < client.pttl(pin) <= 10 * 3600 * 1000
        client.delete(pin)
        hit.close()
        cache.flush()
        assert client.keys("pin:*") == []


def test_a_reader_keeps_its_bytes_when_they_are_evicted(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node(**ROOM_FOR_3)
    put(cache, make_key("1"), cost_s=0.001)
    hit = cache.get(make_key("1"))
    assert hit is not None
    for name in "2345":
        put(cache, make_key(name))
    assert "1" not in kept(cache)
    assert files(tmp_path) == 6
    hit.close()
    assert bytes(hit.content) == content("1")


def test_a_tensor_made_of_a_hit_outlives_hit_and_cache(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    put(cache, make_key("1"))
    hit = cache.get(make_key("1"))
    assert hit is not None
    # Without the warning that torch gives for memory that is read-only.
    tensor = torch.frombuffer(hit.content, dtype=torch.uint8)
    del hit
    cache.drop("digest", make_key("1").digest)
    cache.close()
    assert tensor.numpy().tobytes() == content("1")


def test_redis_keeps_nothing_of_what_left(make_node: MakeNode, make_key: MakeKey, redis_url: str) -> None:
    cache = make_node(**ROOM_FOR_3)
    with Redis.from_url(redis_url) as client:
        for name in "123":
            put(cache, make_key(name))
        before = client.dbsize()
        for name in "456789abc":
            cache.get(make_key(name))
            put(cache, make_key(name, tenant="t"))
        assert client.dbsize() == before + 1  # counts
        cache.drop("tenant", "t")
        left = {key.decode() for key in client.keys("*")}
    assert left == {"nodes", "node:a", "counts", "drops", "b:a:disk", "b:a:memory"}


def test_a_tier_that_was_made_smaller_is_trimmed(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node(memory_bytes=9 * SIZE, disk_bytes=9 * SIZE)
    for name in "1234":
        put(cache, make_key(name))
    cache.close()
    again = make_node(memory_bytes=9 * SIZE, disk_bytes=2 * SIZE)
    again.flush()
    assert again.stats()["nodes"]["a"]["tiers"]["disk"] == {"bytes": 2 * SIZE, "blobs": 2}
    assert files(tmp_path / "a" / "blobs") == 2


def test_a_node_that_never_comes_back_is_forgotten(make_node: MakeNode, make_key: MakeKey, redis_url: str) -> None:
    gone, stays = make_node("a", life_s=0.05), make_node("b", forget_s=0.2)
    put(gone, make_key("1"))
    put(stays, make_key("2"))
    gone.close()
    time.sleep(0.3)
    assert kept(stays) == "12"
    for _ in range(2):
        stays.flush()
    assert kept(stays) == "2"
    with Redis.from_url(redis_url) as client:
        assert not [key for key in client.keys("*") if b"a:" in key.partition(b":")[2] + b":"]


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_the_cache_gives_way_to_others_on_its_disk(
    tier: str, make_node: MakeNode, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve_cache.index.index.PIECE", 2)
    cache = make_node()
    for name in "123456789":
        put(cache, make_key(name), cost_s=float(name))
    assert cache.pin(make_key("1").digest, 60)
    # Others have filled the disk: five and a half blobs too many.
    blobs = cache._here.node.tiers[tier]

    def spare() -> int:
        return 3 * SIZE + 500 - SIZE * files(blobs.root)

    monkeypatch.setattr(blobs, "spare", spare)
    cache.flush()
    assert files(blobs.root) == 3
    there = [row["digest"][-1] for row in cache.entries()[0] if tier in [at["tier"] for at in row["replicas"]]]
    assert there == ["1", "8", "9"]
    # More than there is: what is pinned stays.
    monkeypatch.setattr(blobs, "spare", lambda: -9 * SIZE)
    cache.flush()
    assert files(blobs.root) == 1


def test_a_file_system_smaller_than_the_limit(
    make_node: MakeNode, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As /dev/shm is in a container: 64 MB, whatever the limit says.
    cache = make_node()
    memory = cache._here.node.tiers["memory"]
    monkeypatch.setattr(memory, "spare", lambda: 3 * SIZE - SIZE * files(memory.root))
    for name in "123456":
        put(cache, make_key(name), cost_s=float(name))
        cache.flush()
    assert files(memory.root) == 3
    hit = cache.get(make_key("6"))
    assert hit is not None
    assert hit.tier == "memory"


def test_a_tier_is_told_what_its_file_system_has_to_spare(make_node: MakeNode) -> None:
    blobs = make_node()._here.node.tiers["disk"]
    total, _, free = shutil.disk_usage(blobs.root)
    assert blobs.spare() == pytest.approx(free - total / 20, abs=total / 100)
