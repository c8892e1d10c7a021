"""Nodes of a cache on one real Redis."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from videoserve_cache.tiers import Key, Limits, SharedCache

MakeNode = Callable[..., SharedCache]


@pytest.fixture
def limits(tmp_path: Path) -> Limits:
    """Memory in a folder of the test; a Redis that is slow on a busy machine is not away; beats come when asked for."""
    shared_memory = tmp_path / "shm"
    shared_memory.mkdir()
    return Limits(
        memory_bytes=1 << 20,
        disk_bytes=1 << 20,
        shared_memory=shared_memory,
        patience_s=2.0,
        beat_s=3600.0,
        grace_s=0.0,
    )


@pytest.fixture
def make_node(redis_url: str, limits: Limits, tmp_path: Path) -> Iterator[MakeNode]:
    """make_node("a", url=…, address=…, on_event=…, memory_bytes=…) -> the cache of a process of node a."""
    caches: list[SharedCache] = []

    def make(name: str = "a", **other: Any) -> SharedCache:
        told = {"address": None, "redis_url": redis_url} | {
            field: other.pop(field) for field in ("address", "on_event", "redis_url") if field in other
        }
        cache = SharedCache.open(
            folder=tmp_path / name, node=name, limits=replace(limits, **other), secret=b"secret", **told
        )
        cache.flush()
        caches.append(cache)
        return cache

    yield make
    for cache in caches:
        cache.close()


@pytest.fixture
def make_key() -> Callable[..., Key]:
    """make_key("1", tenant=…) -> a Key whose digest is made of the name alone."""

    def make(name: str = "1", **fields: Any) -> Key:
        told = {"kind": "final_latent", "tenant": "t", "model": "m"} | fields
        return Key(digest=name.rjust(64, "0"), **told)

    return make
