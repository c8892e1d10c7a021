"""Files that are damaged, cut or gone behind the index' back: a right hit from elsewhere or a miss, and it heals."""

from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from videoserve_cache.tiers import Key, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]
CONTENT = bytes(range(250)) * 40


def put(cache: SharedCache, key: Key, content: bytes = CONTENT) -> bool:
    return cache.put(key, content, about={}, cost_s=1.0, cls="E0")


def files(tmp_path: Path, tier: str) -> list[Path]:
    return [*(tmp_path / {"memory": "shm", "disk": "a/blobs"}[tier]).rglob("[0-9a-f][0-9a-f]/*")]


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"!")


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(5000)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, cut, remove])
@pytest.mark.parametrize("seen", [True, False])
def test_memory_is_damaged_and_the_disk_answers(
    damage: Callable[[Path], None], seen: bool, make_node: MakeNode, make_key: MakeKey, tmp_path: Path
) -> None:
    cache = make_node()
    put(cache, make_key())
    if seen:
        # What was verified once is looked at again when its file has changed.
        assert cache.get(make_key()) is not None
    (place,) = files(tmp_path, "memory")
    damage(place)
    tiers = []
    for _ in range(2):
        hit = cache.get(make_key())
        assert hit is not None
        assert bytes(hit.content) == CONTENT
        tiers.append(hit.tier)
        cache.flush()
    assert tiers == ["disk", "memory"]
    assert cache.stats()["counts"].get("corrupt:memory", 0) == (damage is not remove)


@pytest.mark.parametrize("damage", [flip, cut, remove])
def test_all_copies_are_damaged(
    damage: Callable[[Path], None], make_node: MakeNode, make_key: MakeKey, tmp_path: Path
) -> None:
    told: list[str] = []
    cache = make_node(on_event=lambda what, key, tier, size, seconds: told.append(f"{what} {tier}".strip()))
    put(cache, make_key())
    for tier in ("memory", "disk"):
        (place,) = files(tmp_path, tier)
        damage(place)
    assert cache.get(make_key()) is None
    assert [what for what in told if what.startswith("corrupt")] == (
        [] if damage is remove else ["corrupt memory", "corrupt disk"]
    )
    # Nothing is left of it, so that it can be put anew.
    assert cache.entries() == ([], None)
    assert cache.stats()["nodes"]["a"]["tiers"]["disk"] == {"bytes": 0, "blobs": 0}
    assert put(cache, make_key())
    hit = cache.get(make_key())
    assert hit is not None
    assert (bytes(hit.content), hit.tier) == (CONTENT, "memory")


def test_putting_replaces_a_damaged_file(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node()
    put(cache, make_key("1"))
    for tier in ("memory", "disk"):
        flip(*files(tmp_path, tier))
    put(cache, make_key("2"))
    hit = cache.get(make_key("1"))
    assert hit is not None
    assert bytes(hit.content) == CONTENT


def test_a_machine_that_was_restarted_has_its_disk_only(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node()
    for name in "123":
        put(cache, make_key(name), CONTENT + name.encode())
    for place in files(tmp_path, "memory"):
        place.unlink()
    again = make_node()
    assert again.stats()["nodes"]["a"]["tiers"] == {
        "memory": {"bytes": 0, "blobs": 0}, "disk": {"bytes": 30_003, "blobs": 3},
    }  # fmt: skip
    hit = again.get(make_key("2"))
    assert hit is not None
    assert (bytes(hit.content), hit.tier) == (CONTENT + b"2", "disk")


def test_start_of_a_node_agrees_files_and_index(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node()
    for name in "123":
        put(cache, make_key(name), CONTENT + name.encode())
    gone = files(tmp_path, "disk")[0]
    gone.unlink()
    stranger = gone.with_name(gone.name[:2] + gone.name[:1:-1])
    stranger.write_bytes(b"stranger")
    unfinished = tmp_path / "a" / "blobs" / "tmp" / "unfinished"
    unfinished.write_bytes(b"unfinished")
    again = make_node()
    assert not stranger.exists()
    assert not unfinished.exists()
    tiers = again.stats()["nodes"]["a"]["tiers"]
    assert (tiers["memory"]["blobs"], tiers["disk"]["blobs"]) == (3, 2)
    assert all(again.get(make_key(name)) is not None for name in "123")


def test_an_index_that_was_emptied_leaves_no_files(
    make_node: MakeNode, make_key: MakeKey, redis_url: str, tmp_path: Path
) -> None:
    cache = make_node()
    put(cache, make_key())
    with Redis.from_url(redis_url) as client:
        client.flushall()
    assert cache.get(make_key()) is None
    cache.flush()
    assert files(tmp_path, "memory") + files(tmp_path, "disk") == []
    assert put(cache, make_key())
    assert cache.get(make_key()) is not None
