"""/v1/cache: the operator's look at what is kept, the other nodes' way to its bytes, and what /metrics tells of it."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from videoserve.api.keys import create_key
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve_cache.tiers import Key, Limits, SharedCache
from videoserve_cache.tiers.peer import token

pytestmark = pytest.mark.anyio
SECRET = b"shared secret"
CALLS = [
    ("GET", "/v1/cache/stats"),
    ("GET", "/v1/cache/entries"),
    ("DELETE", "/v1/cache/entries?tenant=ana"),
    ("DELETE", "/v1/cache/entries/" + "0" * 64),
    ("POST", "/v1/cache/entries/" + "0" * 64 + "/pin"),
    ("POST", "/v1/cache/entries/" + "0" * 64 + "/unpin"),
]


@pytest.fixture
async def cache(app: FastAPI, settings: Settings, tmp_path: Path) -> AsyncIterator[SharedCache]:
    (tmp_path / "shm").mkdir()
    limits = Limits(memory_bytes=10_000, disk_bytes=10_000, shared_memory=tmp_path / "shm", patience_s=2.0, beat_s=3600)
    assert settings.redis_url is not None
    cache = SharedCache.open(
        settings.redis_url, tmp_path / "cache", node="a", limits=limits, secret=SECRET, address=None
    )
    cache.flush()
    app.state.service.cache = cache
    yield cache
    cache.close()


def digest(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def keep(cache: SharedCache) -> Callable[..., Key]:
    """keep(1, b"…", kind=…, tenant=…) -> the Key of an entry that is there now."""

    def put(number: int, content: bytes | None = None, cost_s: float = 2.5, **fields: Any) -> Key:
        key = Key(digest=digest(number), **{"kind": "result", "tenant": "ana", "model": "m"} | fields)
        assert cache.put(key, content or b"%d" % number * 100, about={}, cost_s=cost_s, cls="E0")
        return key

    return put


async def test_without_a_cache_every_call_says_so(client: httpx.AsyncClient) -> None:
    for method, path in [*CALLS, ("GET", "/v1/cache/blobs/" + "0" * 64)]:
        answer = await client.request(method, path)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "cache_off"


async def test_only_admins_see_it(client: httpx.AsyncClient, broker: Broker, cache: SharedCache) -> None:
    user = {"Authorization": "Bearer " + await create_key(broker, "ana", ["generate", "adapters"])}
    admin = {"Authorization": "Bearer " + await create_key(broker, "root", ["admin"])}
    for method, path in CALLS:
        codes = [(await client.request(method, path, headers=headers)).status_code for headers in ({}, user, admin)]
        assert codes[:2] == [401, 403]
        assert codes[2] in (200, 404)


async def test_without_keys_no_foreign_page_forgets_anything(client: httpx.AsyncClient, keep: Any) -> None:
    keep(1)
    answer = await client.delete("/v1/cache/entries?tenant=ana", headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_origin"
    assert len((await client.get("/v1/cache/entries")).json()["data"]) == 1


async def test_entries_come_in_pages(client: httpx.AsyncClient, keep: Any) -> None:
    for number in range(5):
        keep(number, kind=("result", "img_cond")[number % 2], tenant=("ana", "ben")[number // 3], loras=("l1",))
    page = (await client.get("/v1/cache/entries?limit=2")).json()
    seen = page["data"]
    while page["has_more"]:
        page = (await client.get("/v1/cache/entries", params={"limit": 2, "after": page["last_id"]})).json()
        assert len(page["data"]) <= 2
        seen += page["data"]
    assert sorted(entry["digest"] for entry in seen) == [digest(number) for number in range(5)]
    (one,) = [entry for entry in seen if entry["digest"] == digest(4)]
    assert one.pop("age_s") < 60
    replicas = [{"node": "a", "tier": tier} for tier in ("disk", "memory")]
    assert sorted(one.pop("replicas"), key=lambda replica: replica["tier"]) == replicas
    assert one == {
        "object": "cache.entry",
        "kind": "result",
        "digest": digest(4),
        "sha256": hashlib.sha256(b"4" * 100).hexdigest(),
        "size": 100,
        "cost_s": 2.5,
        "class": "E0",
        "model": "m",
        "loras": ["l1"],
        "tenant": "ben",
        "shared": False,
        "uses": 1,
        "pinned": False,
    }


async def test_filtered_pages_are_full_ones(
    client: httpx.AsyncClient, keep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("videoserve.api.cache_view.SCANNED", 3)
    for number in range(20):
        keep(number, tenant="ben" if number % 5 == 0 else "ana")
    page = (await client.get("/v1/cache/entries?tenant=ben&limit=3")).json()
    assert [entry["digest"] for entry in page["data"]] == [digest(number) for number in (0, 5, 10)]
    assert page["has_more"]
    rest = (await client.get("/v1/cache/entries", params={"tenant": "ben", "after": page["last_id"]})).json()
    assert [entry["digest"] for entry in rest["data"]] == [digest(15)]
    assert not rest["has_more"]
    assert (await client.get("/v1/cache/entries?model=other")).json() == {
        "object": "list",
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?kind=coffee", "kind"),
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?after=result:xyz", "after"),
        ("?tenant=", "tenant"),
    ],
)
async def test_what_cannot_be_listed(client: httpx.AsyncClient, cache: SharedCache, path: str, param: str) -> None:
    answer = await client.get("/v1/cache/entries" + path)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param


async def test_forgetting(client: httpx.AsyncClient, cache: SharedCache, keep: Any) -> None:
    keys = [
        keep(1),
        keep(2, tenant="ben"),
        keep(3, tenant="ben", model="other"),
        keep(4, loras=("l1", "l2")),
        keep(5, kind="img_cond"),
        keep(6),
    ]
    left = {key.digest for key in keys}
    for query, gone in (("tenant=ben", {2, 3}), ("lora=l2", {4}), ("kind=img_cond", {5}), ("model=m", {1, 6})):
        answer = (await client.delete(f"/v1/cache/entries?{query}")).json()
        assert answer == {"object": "cache.dropped", "dropped": len(gone)}
        left -= {digest(number) for number in gone}
        assert {key.digest for key in keys if cache.get(key)} == left
    one = keep(7)
    assert (await client.delete(f"/v1/cache/entries/{one.digest}")).json()["dropped"] == 1
    assert cache.get(one) is None
    again = await client.delete(f"/v1/cache/entries/{one.digest}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("query", ["", "?tenant=ana&kind=result"])
async def test_nobody_forgets_everything_by_mistake(client: httpx.AsyncClient, keep: Any, query: str) -> None:
    keep(1)
    answer = await client.delete("/v1/cache/entries" + query)
    assert answer.status_code == 422
    assert "it must name one of kind, model, lora, tenant" in answer.json()["error"]["message"]
    assert len((await client.get("/v1/cache/entries")).json()["data"]) == 1


async def test_a_pinned_entry_stays_and_any_process_ends_the_pin(
    client: httpx.AsyncClient, cache: SharedCache, keep: Any, settings: Settings
) -> None:
    pinned = keep(1, cost_s=0.001)
    path = f"/v1/cache/entries/{pinned.digest}"
    assert (await client.post(f"{path}/pin?ttl_s=60")).json() == {
        "object": "cache.entry",
        "digest": pinned.digest,
        "pinned": True,
    }
    for number in range(2, 6):
        keep(number, bytes([number]) * 4000, cost_s=100.0)
    assert cache.get(pinned) is not None
    assert (await client.get("/v1/cache/entries?limit=1")).json()["data"][0]["pinned"]
    # As another API process would.
    cache._here.node.index.holder = "another process"
    assert (await client.post(f"{path}/unpin")).json()["pinned"] is False
    for number in range(6, 10):
        keep(number, bytes([number]) * 4000, cost_s=100.0)
    assert cache.get(pinned) is None
    for query, code in (("pin", 404), ("unpin", 404), ("pin?ttl_s=0", 422), ("pin?ttl_s=nan", 422)):
        assert (await client.post(f"{path}/{query}")).status_code == code
    assert (await client.post("/v1/cache/entries/..%2Fsecret/pin")).status_code in (404, 422)


async def test_blobs_are_for_those_who_know_the_secret(client: httpx.AsyncClient, keep: Any, tmp_path: Path) -> None:
    content = b"\x00bytes\xff" * 1000
    keep(1, content)
    sha256 = hashlib.sha256(content).hexdigest()
    (tmp_path / "cache" / "blobs" / "secret").write_bytes(b"not a blob")

    async def ask(name: str, secret: bytes = SECRET) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token(secret, name)}"}
        return await client.get(f"/v1/cache/blobs/{name}", headers=headers)

    answer = await ask(sha256)
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (await ask(sha256, b"guessed")).status_code == 401
    assert (await client.get(f"/v1/cache/blobs/{sha256}")).status_code == 401
    # Opens that blob alone, and an unknown one is told from a known one only by who may have it.
    other = {"Authorization": f"Bearer {token(SECRET, sha256)}"}
    assert (await client.get("/v1/cache/blobs/" + "1" * 64, headers=other)).status_code == 401
    for name in ("1" * 64, "secret", sha256.upper(), sha256 + "0", "..%2Fsecret"):
        answer = await ask(name)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_stats_and_metrics_are_of_all_processes(
    client: httpx.AsyncClient, cache: SharedCache, keep: Any, settings: Settings, tmp_path: Path
) -> None:
    keys = [keep(1), keep(2, kind="img_cond", cost_s=0.5)]
    limits = Limits(memory_bytes=0, disk_bytes=10_000, shared_memory=tmp_path / "shm", patience_s=2.0, beat_s=3600)
    assert settings.redis_url is not None
    other = SharedCache.open(
        settings.redis_url, tmp_path / "other", node="b", limits=limits, secret=SECRET, address=None
    )
    for key in (*keys, keys[0]):
        with_bytes = cache.get(key)
        assert with_bytes is not None
    assert other.get(Key(kind="result", digest=digest(9), tenant="ana", model="m")) is None
    for process in (cache, other):
        process.flush()
    told = (await client.get("/v1/cache/stats")).json()
    assert told["total"] == {"hits": 3, "misses": 1, "evictions": 0, "saved_s": 5.5}
    assert told["kinds"]["result"] == {"hits": 2, "misses": 1, "evictions": 0, "saved_s": 5.0}
    assert told["entries"]["result"] == 1
    assert set(told["nodes"]) == {"a", "b"}
    assert told["nodes"]["a"]["tiers"]["disk"] == {"bytes": 200, "blobs": 2}
    text = (await client.get("/metrics")).text
    for line in (
        'videoserve_cache_hits_total{kind="result",tier="memory"} 2.0',
        'videoserve_cache_misses_total{kind="result"} 1.0',
        'videoserve_cache_saved_seconds_total{kind="img_cond"} 0.5',
        'videoserve_cache_hit_bytes_total{kind="result",tier="memory"} 200.0',
        'videoserve_cache_entries{kind="img_cond"} 1.0',
        'videoserve_cache_tier_bytes{node="a",tier="disk"} 200.0',
    ):
        assert line in text
    for number in range(3, 7):
        keep(number, bytes([number]) * 4000, cost_s=100.0)
    text = (await client.get("/metrics")).text
    assert 'videoserve_cache_evictions_total{kind="result",tier="disk"}' in text
    other.close()


async def test_a_redis_that_is_away_is_a_503(
    client: httpx.AsyncClient, cache: SharedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache._here.node.link, "answers", lambda: False)
    cache._here.node.link.breaker.trip()
    answer = await client.get("/v1/cache/stats")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert "videoserve_cache" not in (await client.get("/metrics")).text


async def test_every_call_is_described(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for method, path in (("get", "/v1/cache/blobs/{sha256}"), ("delete", "/v1/cache/entries/{digest}")):
        assert {"401", "404"} <= set(paths[path][method]["responses"])
