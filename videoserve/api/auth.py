"""Who calls: an API key, or the local user of a server without keys, and what they may do."""

import asyncio
import hmac
import ipaddress
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit

from fastapi import Request

from videoserve.broker.apikeys import digest_key
from videoserve.config import Settings
from videoserve.errors import ServeError

SCOPES = ("generate", "adapters", "admin")
LOCAL_TENANT = "local"

# A table of keys this old is read again; one that lacks the key at hand, after the shorter time.
FRESH_S = 2.0
FRESH_UNKNOWN_S = 0.2


class KeyTable(Protocol):
    """The part of the broker that holds API keys: sha256 hex digest of a key → its record."""

    async def keys(self) -> Mapping[str, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one key may use at once: jobs waiting or running, and jobs running (0: no limit)."""

    queue: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever sent a request: whose videos they see (`tenant`), under which key, with which rights."""

    tenant: str
    key: str
    scopes: frozenset[str]
    limits: Limits


class Authenticator:
    """Finds the Caller of a request. One per API process, kept as `app.state.auth`; asks the broker rarely."""

    def __init__(self, settings: Settings, table: KeyTable):
        self._settings = settings
        self._table = table
        self._records: Mapping[str, dict[str, Any]] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def caller(self, request: Request) -> Caller:
        """Raises ServeError 401 without a valid key where keys exist, 403 for a web page of another site."""
        records = await self._known(FRESH_S)
        if not records:
            return self._local(request)
        digest = digest_key(_bearer(request))
        record = _find(digest, records) or _find(digest, await self._known(FRESH_UNKNOWN_S))
        if record is None:
            raise ServeError("This API key is not known to the server.", status=401, code="invalid_api_key")
        return self._of_key(record)

    def _of_key(self, record: dict[str, Any]) -> Caller:
        limits = Limits(
            queue=record.get("queue_limit", self._settings.key_queue_limit),
            concurrency=record.get("concurrency", self._settings.key_concurrency),
        )
        return Caller(tenant=record["tenant"], key=record["name"], scopes=frozenset(record["scopes"]), limits=limits)

    def _local(self, request: Request) -> Caller:
        """The user of this machine, as long as the server has no keys.

        Loopback keeps other machines out but not the web pages that this machine's browser shows. Such a page can
        post a form to 127.0.0.1 (then its Origin is foreign), or let its own name resolve to 127.0.0.1 and read
        the answers as well (DNS rebinding; then the Host is foreign). Both headers are written by the browser and out
        of the page's reach, so without a key every call must name this server as its Host, and every call that
        changes something and has an Origin must come from the server's own page. A key makes both moot: no page
        can send one that its user has not typed into it.
        """
        loopback = is_loopback(self._settings.host)
        if not loopback and not self._settings.insecure:
            raise ServeError(
                "This server has no API keys yet; add one with `videoserve keys add NAME`.",
                status=401,
                code="invalid_api_key",
            )
        host = request.headers.get("host", "")
        if loopback and not _is_own_name(host, self._settings.host):
            raise ServeError(
                f"The Host header is {host!r}; without API keys this server answers to localhost, 127.0.0.1 and "
                f"[::1] only.",
                status=403,
                code="foreign_host",
            )
        origin = request.headers.get("origin")
        if request.method not in ("GET", "HEAD") and origin not in (None, f"http://{host}", f"https://{host}"):
            raise ServeError(
                f"The Origin header is {origin!r}; without API keys only this server's own page, on {host}, may "
                f"change anything from a browser.",
                status=403,
                code="foreign_origin",
            )
        limits = Limits(queue=self._settings.key_queue_limit, concurrency=self._settings.key_concurrency)
        return Caller(tenant=LOCAL_TENANT, key=LOCAL_TENANT, scopes=frozenset(SCOPES), limits=limits)

    async def _known(self, fresh_s: float) -> Mapping[str, dict[str, Any]]:
        if time.monotonic() - self._read_at > fresh_s:
            # One read for all who wait, and its failure is everybody's: one after the other they would each wait for a
            # store that is away as long as all before them together.
            if self._reading is None:
                self._reading = asyncio.create_task(self._read())
            # Whoever leaves takes the reading from nobody.
            await asyncio.shield(self._reading)
        return self._records

    async def _read(self) -> None:
        try:
            self._records = await self._table.keys()
            self._read_at = time.monotonic()
        finally:
            self._reading = None


def require(*scopes: str) -> Callable[[Request], Awaitable[Caller]]:
    """A FastAPI dependency: the Caller, who has one of `scopes`. ServeError 401 without a valid key, 403 without."""
    assert set(scopes) <= set(SCOPES), scopes

    async def dependency(request: Request) -> Caller:
        auth: Authenticator = request.app.state.auth
        caller = await auth.caller(request)
        if caller.scopes.isdisjoint(scopes):
            has = ", ".join(sorted(caller.scopes)) or "none"
            raise ServeError(
                f"The API key {caller.key!r} has the scopes {has}; this call needs {' or '.join(scopes)}.",
                status=403,
                code="missing_scope",
            )
        return caller

    return dependency


def check_bind(settings: Settings, has_keys: bool) -> str | None:
    """Why the server must not start on `settings.host`, as a sentence; None when it may."""
    if has_keys or settings.insecure or is_loopback(settings.host):
        return None
    return (
        f"The host is {settings.host}, which other machines can reach, and there are no API keys. Add a key with "
        f"`videoserve keys add NAME --data {settings.data}`, or bind 127.0.0.1, or pass --insecure to serve everyone "
        "who can connect."
    )


# Asked about the same few names with every request.
@lru_cache(maxsize=64)
def is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=64)
def _is_own_name(host_header: str, bound: str) -> bool:
    try:
        name = urlsplit(f"//{host_header}").hostname
    except ValueError:
        return False
    return name is not None and (name == bound or is_loopback(name))


def _bearer(request: Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise ServeError(
            "This server needs an API key: send the header `Authorization: Bearer YOUR_KEY`.",
            status=401,
            code="invalid_api_key",
        )
    return key.strip()


def _find(digest: str, records: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Looks at every key, so that the time taken says nothing about how much of a digest was right."""
    found = None
    for stored, record in records.items():
        if hmac.compare_digest(stored, digest):
            found = record
    return found
