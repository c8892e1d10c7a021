"""API keys, as an operator adds, lists and revokes them."""

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from videoserve.api.auth import SCOPES
from videoserve.broker.apikeys import digest_key
from videoserve.errors import Conflict, InvalidField, NotFound

PREFIX = "vs_"


class KeyStore(Protocol):
    """The part of the broker that keeps API keys by the sha256 hex digest of each."""

    async def keys(self) -> Mapping[str, dict[str, Any]]: ...
    async def add_key(self, digest: str, record: dict[str, Any]) -> None: ...
    async def drop_key(self, digest: str) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """What may be shown of a key; `start` is its beginning, enough to tell keys apart."""

    name: str
    tenant: str
    scopes: tuple[str, ...]
    start: str
    created_at: int


async def create_key(
    store: KeyStore,
    name: str,
    scopes: Iterable[str] = ("generate",),
    tenant: str | None = None,
    *,
    queue_limit: int | None = None,
    concurrency: int | None = None,
) -> str:
    """A new key, shown this once: only its hash is kept. The tenant is the key's name unless given.

    Keys of one tenant see each other's videos. Raises InvalidField for an unknown scope, Conflict for a name in use.
    """
    wanted = tuple(dict.fromkeys(scopes))
    for scope in wanted:
        if scope not in SCOPES:
            raise InvalidField("scopes", f"The scope {scope!r} does not exist; scopes are {', '.join(SCOPES)}.")
    if not name or not wanted:
        raise InvalidField("name" if not name else "scopes", "A key needs a name and at least one scope.")
    if any(record["name"] == name for record in (await store.keys()).values()):
        raise Conflict(f"There is a key named {name!r} already; revoke it first or choose another name.")
    key = PREFIX + secrets.token_urlsafe(32)
    record: dict[str, Any] = {
        "name": name,
        "tenant": tenant or name,
        "scopes": list(wanted),
        "start": key[:8],
        "created_at": int(time.time()),
    }
    limits = {"queue_limit": queue_limit, "concurrency": concurrency}
    await store.add_key(digest_key(key), record | {k: v for k, v in limits.items() if v is not None})
    return key


async def list_keys(store: KeyStore) -> list[KeyInfo]:
    """Every key, oldest first."""
    records = (await store.keys()).values()
    infos = [
        KeyInfo(
            name=record["name"],
            tenant=record["tenant"],
            scopes=tuple(record["scopes"]),
            start=record["start"],
            created_at=record["created_at"],
        )
        for record in records
    ]
    return sorted(infos, key=lambda info: (info.created_at, info.name))


async def revoke_key(store: KeyStore, name: str) -> None:
    """From now (in API processes: within two seconds) the key is unknown. Raises NotFound."""
    records = await store.keys()
    digests = [digest for digest, record in records.items() if record["name"] == name]
    if not digests:
        known = ", ".join(sorted(record["name"] for record in records.values())) or "none"
        raise NotFound(f"There is no key named {name!r}; the keys are: {known}.")
    for digest in digests:
        await store.drop_key(digest)
