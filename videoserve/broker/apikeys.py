"""API keys: only their digests are stored."""

import hashlib
import json
from typing import Any

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS


def digest_key(key: str) -> str:
    """Under which an API key is stored: its sha256 in hex. Keys are random, so no salt is needed."""
    return hashlib.sha256(key.encode()).hexdigest()


class ApiKeyCalls(Calls):
    async def add_key(self, digest: str, record: dict[str, Any]) -> None:
        """Stores {name, tenant, scopes, …} under `digest_key(key)`."""
        text = json.dumps(record)
        await self._link.patiently(lambda: self._link.short.hset(KEYS["apikeys"], digest, text))

    async def keys(self) -> dict[str, dict[str, Any]]:
        """All records by digest."""
        stored = await self._link.patiently(lambda: self._link.short.hgetall(KEYS["apikeys"]))
        return {digest: json.loads(text) for digest, text in stored.items()}

    async def drop_key(self, digest: str) -> bool:
        """False when there was no such key. Two droppers at once, or a lost answer: the later one hears False."""
        return bool(await self._link.patiently(lambda: self._link.short.hdel(KEYS["apikeys"], digest)))
