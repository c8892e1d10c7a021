"""Who works here and how fast: heartbeats, measured costs, counts for metrics."""

import json
import time
from collections.abc import Mapping
from typing import Any

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS


class WorkerCalls(Calls):
    async def heartbeat(self, worker_id: str, info: Mapping[str, Any], ttl: float) -> None:
        """The worker lives for another `ttl` seconds; `info`, with kind and ready, is what `workers` shows of it."""
        text = json.dumps(dict(info))

        async def write() -> Any:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.set(KEYS["worker"] + worker_id, text, px=max(1, round(1000 * ttl)))
                pipe.zadd(KEYS["workers"], {worker_id: time.time() + ttl})
                able = KEYS["able"] + info["kind"]
                pipe.sadd(able, worker_id) if info["ready"] else pipe.srem(able, worker_id)
                return await pipe.execute()

        await self._link.patiently(write)

    async def workers(self) -> list[dict[str, Any]]:
        """The living: what each told at its last heartbeat, with its "id"."""
        short = self._link.short

        async def read() -> Any:
            # Long past members go; whether one lives is decided by its key, on the server's clock.
            await short.zremrangebyscore(KEYS["workers"], "-inf", time.time() - 3600)
            ids: Any = await short.zrange(KEYS["workers"], 0, -1)
            return ids, await short.mget([KEYS["worker"] + worker for worker in ids]) if ids else []

        ids, texts = await self._link.patiently(read)
        return [{"id": worker} | json.loads(text) for worker, text in zip(ids, texts, strict=True) if text]

    async def farewell(self, worker_id: str) -> None:
        """The worker leaves now rather than when its heartbeat runs out."""
        await self._link.patiently(lambda: self._link.short.delete(KEYS["worker"] + worker_id))

    async def costs(self, model: str) -> dict[str, Any]:
        """Measured seconds by shape key, as `save_costs` was told."""
        stored = await self._link.patiently(lambda: self._link.short.hgetall(KEYS["costs"] + model))
        return {shape: json.loads(text) for shape, text in stored.items()}

    async def save_costs(self, model: str, costs: Mapping[str, Any]) -> None:
        """Replaces the shapes named in `costs`, keeps the others."""
        pairs = [text for shape, cost in costs.items() for text in (shape, json.dumps(cost))]
        if pairs:
            await self._link.patiently(lambda: self._link.short.hset(KEYS["costs"] + model, items=pairs))

    async def depth(self, kind: str) -> dict[str, int]:
        """{queued, running, webhooks}: jobs of this kind, and deliveries not settled."""

        async def read() -> list[int]:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.zcard(KEYS["queue"] + kind)
                pipe.zcard(KEYS["leases"] + kind)
                pipe.xlen(KEYS["webhooks"])
                pipe.zcard(KEYS["webhooks_due"])
                return await pipe.execute()

        queued, running, pending, due = await self._link.patiently(read)
        return {"queued": queued, "running": running, "webhooks": pending + due}

    async def twins(self, kind: str) -> dict[str, int]:
        """{waiting, answered}: jobs that wait for the same video of another, and how many have got it so far."""

        async def read() -> list[Any]:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.scard(KEYS["following"] + kind)
                pipe.get(KEYS["answered"] + kind)
                return await pipe.execute()

        waiting, answered = await self._link.patiently(read)
        return {"waiting": waiting, "answered": int(answered or 0)}
