"""Retention, and the small tables: workers, costs, API keys."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from videoserve.broker import Broker, digest_key
from videoserve.types import Appetite, Job, Output

pytestmark = pytest.mark.anyio
ROOMY: dict[str, Any] = {"queue_limit": 100_000, "key_queue_limit": 100_000}
MakeJob = Callable[..., Job]


async def test_finished_jobs_expire_and_leave_nothing(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    outputs = {"video": Output(sha256="v", bytes=1, media_type="video/mp4")}
    for name in ("a", "b"):
        await broker.submit([make_job(name, plan={"image": "i", "last_image": name})], **ROOMY)
        claim = await broker.claim("video", "w", Appetite(idle=True))
        assert claim is not None
        await broker.finish(name, claim.fence, outputs, {})
    await broker.submit([make_job("c", plan={"image": "j"})], **ROOMY)
    assert await broker.expire() == []
    with Redis.from_url(redis_url) as client:
        for name in ("a", "b"):
            client.zincrby("expiry", -7200, name)
    assert await broker.expire(limit=1) == [("a", ["a"])]
    removed = await broker.expire()
    assert [(job_id, sorted(freed)) for job_id, freed in removed] == [("b", ["b", "i", "v"])]
    assert (await broker.list("t"))[0][0][0].id == "c"
    await broker.delete("c")
    with Redis.from_url(redis_url, decode_responses=True) as client:
        left = {key.partition(":")[0] for key in client.scan_iter()}
    assert left <= {"once", "ev", "wake", "fence", "order", "pace"}


async def test_nothing_stored_is_a_pickle(broker: Broker, redis_url: str, make_job: MakeJob) -> None:
    job = make_job("a", metadata={"note": "é"}, webhook_url="https://x.example/")
    await broker.submit([job], idempotency=("key", "body"), **ROOMY)
    claim = await broker.claim("video", "w", Appetite(idle=True))
    assert claim is not None
    await broker.finish("a", claim.fence, {}, {"x": [1, None, {}]})
    await broker.heartbeat("w", {"kind": "video", "ready": True}, 10)
    with Redis.from_url(redis_url) as client:
        fields = client.hgetall("job:a")
        for name in (b"job", b"outputs", b"receipt"):
            assert isinstance(json.loads(fields[name]), dict)
        # Decoding fails on a pickle: since protocol 2 they begin with byte 0x80, which begins no UTF-8 text.
        stored = [*fields.values(), client.get("worker:w"), client.get("idem:1:t:key")]
        stored += [value for _, told in client.xrange("ev:a") for value in told.values()]
        assert all(value.decode().isprintable() for value in stored)


async def test_heartbeats_end(broker: Broker, redis_url: str) -> None:
    await broker.heartbeat("w1", {"kind": "video", "ready": False}, 60)
    await broker.heartbeat("w1", {"kind": "video", "ready": True}, 60)
    await broker.heartbeat("w2", {"kind": "video", "ready": True}, 30)
    assert [worker["id"] for worker in await broker.workers()] == ["w2", "w1"]
    with Redis.from_url(redis_url) as client:
        assert 20_000 < client.pttl("worker:w2") <= 30_000
        client.delete("worker:w2")
    assert await broker.workers() == [{"id": "w1", "kind": "video", "ready": True}]
    await broker.farewell("w1")
    assert await broker.workers() == []


async def test_costs_merge_by_shape(broker: Broker) -> None:
    assert await broker.costs("m") == {}
    await broker.save_costs("m", {"64x64x5:g1": {"step": 0.5}, "64x64x9:g0": {"step": 1.0}})
    await broker.save_costs("m", {"64x64x5:g1": {"step": 0.25}})
    await broker.save_costs("m", {})
    assert await broker.costs("m") == {"64x64x5:g1": {"step": 0.25}, "64x64x9:g0": {"step": 1.0}}
    assert await broker.costs("n") == {}


async def test_api_keys_are_stored_by_digest(broker: Broker, redis_url: str) -> None:
    record = {"name": "n", "tenant": "t", "scopes": ["generate"]}
    await broker.add_key(digest_key("secret"), record)
    assert await broker.keys() == {digest_key("secret"): record}
    with Redis.from_url(redis_url) as client:
        assert b"secret" not in client.dump("apikeys")
    assert await broker.drop_key(digest_key("secret"))
    assert not await broker.drop_key(digest_key("secret"))
