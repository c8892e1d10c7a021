"""The cache that the settings name."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.config import Settings
from videoserve.storage.open_cache import node_name, open_cache
from videoserve_cache.tiers import Key, SharedCache
from videoserve_cache.trace.file import read

KEY = Key(kind="result", digest="1" * 64, tenant="ana", model="m")
Open = Callable[..., SharedCache | None]


@pytest.fixture
def opened(redis_url: str, tmp_path: Path) -> Iterator[Open]:
    """opened(cache_trace_mb=…, …) -> the cache of a process with these settings."""
    caches: list[SharedCache] = []

    def make(**told: Any) -> SharedCache | None:
        serves = told.pop("serves", False)
        small = {"cache_memory_gb": 0.001, "cache_disk_gb": 0.001}
        cache = open_cache(Settings(redis_url=redis_url, data=tmp_path, **small | told), serves=serves)
        if cache is not None:
            cache.flush()
            caches.append(cache)
        return cache

    yield make
    for cache in caches:
        cache.close()


def test_nothing_is_kept_where_nobody_wants_it(opened: Open, tmp_path: Path) -> None:
    assert opened(cache=False) is None
    assert open_cache(Settings(data=tmp_path), serves=True) is None
    assert not (tmp_path / "cache").exists()


def test_a_folder_is_one_node_whoever_opens_it(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert node_name(one) == node_name(one) != node_name(other)
    assert [path.name for path in one.iterdir()] == ["node"]


@pytest.mark.parametrize(
    ("told", "address"),
    [
        ({"serves": True, "cache_secret": "s" * 16, "cache_address": "http://10.0.0.5:8000"}, "http://10.0.0.5:8000"),
        ({"serves": False, "cache_secret": "s" * 16, "cache_address": "http://10.0.0.5:8000"}, None),
        ({"serves": True, "cache_address": "http://10.0.0.5:8000"}, None),
    ],
)
def test_others_are_told_of_nodes_that_answer_them(
    opened: Open, redis_url: str, tmp_path: Path, told: dict[str, Any], address: str | None
) -> None:
    opened(**told)
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        assert redis.hget(f"node:{node_name(tmp_path / 'cache')}", "address") == address


def test_a_trace_is_recorded_on_request(opened: Open, tmp_path: Path) -> None:
    for turn in range(2):
        # As processes that come one after the other.
        cache = opened(cache_trace_mb=1)
        assert cache is not None
        assert (cache.get(KEY) is None) == (turn == 0)
        cache.put(KEY, b"mp4" * 100, about={}, cost_s=7.0, cls="E0")
    lines = list(read(tmp_path / "cache" / "trace.jsonl"))
    assert [line.what for line in lines] == ["miss", "put", "hit", "put"]
    assert {line.cost_s for line in lines[1:]} == {7.0}
    assert len({line.entry for line in lines}) == 1


def test_what_is_no_trace_is_left_alone(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "trace.jsonl").write_text("notes\n")
    with pytest.raises(ValueError, match="is not a videoserve cache trace"):
        opened(cache_trace_mb=1)
    assert (tmp_path / "cache" / "trace.jsonl").read_text() == "notes\n"


def test_the_secret_is_not_shown() -> None:
    words = ["serve", "--cache-secret", "not to be seen by all", "--print-config"]
    shown = CliRunner().invoke(app, words).stdout
    assert 'cache_secret = "…"  # flag' in shown
    assert "not to be seen" not in shown
