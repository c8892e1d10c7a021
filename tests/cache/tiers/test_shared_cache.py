"""One node: what is put is found, by whom it may be found, and what the stats say of it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from videoserve_cache.tiers import Hit, Key, SharedCache

MakeNode = Callable[..., SharedCache]
MakeKey = Callable[..., Key]


def put(cache: SharedCache, key: Key, content: bytes, cost_s: float = 2.0, **about: Any) -> bool:
    return cache.put(key, content, about=about, cost_s=cost_s, cls="E0")


def got(cache: SharedCache, key: Key) -> bytes | None:
    hit = cache.get(key)
    return None if hit is None else bytes(hit.content)


def found(cache: SharedCache, key: Key) -> Hit:
    hit = cache.get(key)
    assert hit is not None
    return hit


def test_what_is_put_is_found_with_all_that_was_said_of_it(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    assert cache.get(make_key()) is None
    assert put(cache, make_key(), b"latents", dtype="bf16", shape=[1, 7])
    hit = found(cache, make_key())
    assert bytes(hit.content) == b"latents"
    assert (hit.about, hit.cost_s, hit.size, hit.cls, hit.tier) == (
        {"dtype": "bf16", "shape": [1, 7]}, 2.0, 7, "E0", "memory",
    )  # fmt: skip
    assert 0 <= hit.age_s < 60
    assert got(make_node(), make_key()) == b"latents"


def test_content_may_be_empty(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    assert put(cache, make_key(), b"")
    assert got(cache, make_key()) == b""
    assert cache.drop("kind", "final_latent") == 1
    assert cache.get(make_key()) is None


def test_content_is_the_readers_own(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    put(cache, make_key(), b"latents")
    found(cache, make_key()).content[0] = 0
    assert got(cache, make_key()) == b"latents"


def test_a_kind_that_is_not_known_is_named(make_key: MakeKey) -> None:
    with pytest.raises(ValueError, match=r"no cache entries of kind 'latent'; kinds are text_emb, "):
        make_key(kind="latent")


def test_a_tenant_never_sees_the_entry_of_another(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    put(cache, make_key(tenant="one"), b"mine")
    assert cache.get(make_key(tenant="two")) is None
    # Not even by putting the same digest, which would tell that it is there.
    assert not put(cache, make_key(tenant="two"), b"other")
    assert cache.get(make_key(tenant="two")) is None
    assert got(cache, make_key(tenant="one")) == b"mine"


def test_a_shared_entry_is_everybodys(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    put(cache, make_key(tenant="one", shared=True), b"ours")
    assert got(cache, make_key(tenant="two", shared=True)) == b"ours"


def test_the_same_bytes_under_two_keys_are_one_file(make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node()
    put(cache, make_key("1", tenant="one"), b"same")
    put(cache, make_key("2", tenant="two"), b"same")
    assert len([*(tmp_path / "a" / "blobs").glob("??/*")]) == 1
    assert cache.drop("tenant", "one") == 1
    assert cache.get(make_key("1", tenant="one")) is None
    assert got(cache, make_key("2", tenant="two")) == b"same"


def test_of_two_contents_under_one_digest_the_first_is_kept(
    make_node: MakeNode, make_key: MakeKey, tmp_path: Path
) -> None:
    one, two = make_node("a"), make_node("b")
    assert put(one, make_key(), b"first")
    assert not put(two, make_key(), b"second")
    assert got(one, make_key()) == b"first"
    assert one.stats()["counts"]["conflicts"] == 1
    assert not [*(tmp_path / "b" / "blobs").glob("??/*")]


def test_what_one_process_forgets_leaves_the_others_what_they_remember(
    make_node: MakeNode, make_key: MakeKey, tmp_path: Path
) -> None:
    one, two = make_node("a"), make_node("b")
    put(one, make_key("1"), b"short")
    put(one, make_key("2"), b"other")
    for cache in (one, two):
        for name in "12":
            cache.device.put(make_key(name).digest, name, 1)
    one.forget(make_key("1"))
    for cache in (one, two):
        assert cache.flush()
        assert cache.get(make_key("1")) is None
        assert cache.device.get(make_key("2").digest) == "2"
    assert one.device.get(make_key("1").digest) is None
    assert len([*(tmp_path / "a" / "blobs").glob("??/*")]) == 1
    # By hand it is to be gone from all memories.
    one.drop("digest", make_key("2").digest)
    assert two.flush()
    assert two.device.get(make_key("2").digest) is None


def test_positions_of_a_prefix(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    for name, position in (("1", 12), ("2", 4), ("3", 8)):
        put(cache, make_key(name, kind="boundary"), name.encode(), prefix="p", position=position)
    assert cache.prefixes("boundary", "p") == [4, 8, 12]
    assert cache.prefixes("boundary", "q") == []
    cache.drop("digest", make_key("3").digest)
    assert cache.prefixes("boundary", "p") == [4, 12]


@pytest.mark.parametrize(
    ("by", "value"),
    [("model", "m1"), ("lora", "l1"), ("tenant", "t1"), ("kind", "result"), ("digest", "1".rjust(64, "0"))],
)
def test_bulk_drop(by: Any, value: str, make_node: MakeNode, make_key: MakeKey, tmp_path: Path) -> None:
    cache = make_node()
    meant = make_key("1", model="m1", loras=("l0", "l1"), tenant="t1", kind="result")
    others = [make_key(str(number), loras=("l0",)) for number in range(2, 5)]
    for key in (meant, *others):
        put(cache, key, key.digest.encode())
    assert cache.drop(by, value) == 1
    assert cache.drop(by, value) == 0
    assert cache.get(meant) is None
    assert all(got(cache, key) == key.digest.encode() for key in others)
    assert len([*(tmp_path / "a" / "blobs").glob("??/*")]) == 3


def test_a_drop_of_more_than_one_call_takes(
    make_node: MakeNode, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve_cache.index.index.PIECE", 3)
    cache = make_node()
    for number in range(7):
        put(cache, make_key(str(number)), b"same")
    assert cache.drop("model", "m") == 7
    assert cache.entries() == ([], None)


def test_pages_of_entries(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    for number in range(5):
        put(cache, make_key(str(number), tenant=f"t{number % 2}"), b"1234")
    put(cache, make_key("9", kind="result", loras=("l1", "l2")), b"mp4", fps=16)
    first, after = cache.entries(limit=4)
    rest, end = cache.entries(limit=4, after=after)
    assert [row["digest"][-1] for row in first + rest] == ["0", "1", "2", "3", "4", "9"]
    assert end is None
    row = rest[-1]
    assert 0 <= row.pop("age_s") < 60
    assert row == {
        "kind": "result", "digest": "9".rjust(64, "0"), "sha256": row["sha256"], "size": 3, "about": {"fps": 16},
        "cost_s": 2.0, "class": "E0", "model": "m", "loras": ["l1", "l2"], "tenant": "t", "shared": False, "uses": 1,
        "pinned": False, "replicas": row["replicas"],
    }  # fmt: skip
    assert sorted(at["tier"] for at in row["replicas"]) == ["disk", "memory"]
    assert len(cache.entries(tenant="t1")[0]) == 2
    assert len(cache.entries(kind="result")[0]) == 1


def test_stats_count_what_all_processes_did(make_node: MakeNode, make_key: MakeKey) -> None:
    one, two = make_node(), make_node()
    put(one, make_key(), b"latents")
    for cache in (one, two, two):
        assert got(cache, make_key()) == b"latents"
    assert two.get(make_key("2")) is None
    two.used_on_device(make_key(), 7, 2.0)
    assert one.flush()
    assert two.flush()
    stats = two.stats()
    assert stats["entries"]["final_latent"] == 1
    assert stats["nodes"]["a"] == {
        "alive": True, "tiers": {"memory": {"bytes": 7, "blobs": 1}, "disk": {"bytes": 7, "blobs": 1}},
    }  # fmt: skip
    assert stats["counts"] == {
        "hits:final_latent:memory": 3, "hits:final_latent:device": 1, "misses:final_latent": 1,
        "saved_s:final_latent": 8,
        "bytes:final_latent:memory": 21, "bytes:final_latent:device": 7,
    }  # fmt: skip


def test_events(make_node: MakeNode, make_key: MakeKey) -> None:
    told: list[tuple[str, Key | None, str, int]] = []
    cache = make_node(on_event=lambda what, key, tier, size, seconds: told.append((what, key, tier, size)))
    key = make_key()
    cache.get(key)
    put(cache, key, b"latents")
    cache.get(key)
    assert [(what, asked, size) for what, asked, _, size in told] == [
        ("miss", key, 0), ("put", key, 7), ("hit", key, 7),
    ]  # fmt: skip


def test_threads_share_a_cache(make_node: MakeNode, make_key: MakeKey) -> None:
    cache = make_node()
    wrong: list[bytes | None] = []

    def work(of: int) -> None:
        for number in range(20):
            key = make_key(str(number))
            put(cache, key, b"%d" % number)
            if (content := got(cache, key)) != b"%d" % number:
                wrong.append(content)

    threads = [threading.Thread(target=work, args=(of,)) for of in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
