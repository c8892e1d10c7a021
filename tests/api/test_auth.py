"""Callers: keys, scopes, and who may use a server that has no keys."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from videoserve.api import auth, keys
from videoserve.api.auth import Authenticator, Caller, check_bind, require
from videoserve.broker.apikeys import digest_key
from videoserve.config import Settings
from videoserve.errors import Conflict, InvalidField, NotFound, ServeError

pytestmark = pytest.mark.anyio


class Table:
    """The broker's table of keys, in a dict; counts how often it is read."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.reads = 0

    async def keys(self) -> dict[str, dict[str, Any]]:
        self.reads += 1
        return dict(self.records)

    async def add_key(self, digest: str, record: dict[str, Any]) -> None:
        self.records[digest] = record

    async def drop_key(self, digest: str) -> bool:
        return self.records.pop(digest, None) is not None


@pytest.fixture
def table() -> Table:
    return Table()


def serve(table: Table, **settings: Any) -> httpx.AsyncClient:
    app = FastAPI()
    app.state.auth = Authenticator(Settings(**settings), table)

    @app.exception_handler(ServeError)
    async def told(request: Request, error: ServeError) -> JSONResponse:
        return JSONResponse({"code": error.code, "message": error.message}, error.status)

    @app.api_route("/me", methods=["GET", "POST"])
    async def me(caller: Caller = Depends(require("generate"))) -> dict[str, Any]:  # noqa: B008
        return {"tenant": caller.tenant, "key": caller.key, "queue": caller.limits.queue}

    @app.get("/admin")
    async def admin(caller: Caller = Depends(require("admin"))) -> str:  # noqa: B008
        return caller.key

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000")


@pytest.fixture
async def client(table: Table) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(table) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_key_opens_its_scopes_only(table: Table, client: httpx.AsyncClient) -> None:
    key = await keys.create_key(table, "ana", ["generate"], "studio", queue_limit=7)
    answer = await client.get("/me", headers=bearer(key))
    assert answer.json() == {"tenant": "studio", "key": "ana", "queue": 7}
    refused = await client.get("/admin", headers=bearer(key))
    assert refused.status_code == 403
    assert refused.json()["code"] == "missing_scope"
    assert "admin" in refused.json()["message"]


@pytest.mark.parametrize(
    "header", [{}, bearer("vs_wrong"), bearer(""), {"Authorization": "Basic eDp5"}, {"Authorization": b"Bearer \xff"}]
)
async def test_without_a_known_key_401(table: Table, client: httpx.AsyncClient, header: dict[str, Any]) -> None:
    await keys.create_key(table, "ana")
    answer = await client.get("/me", headers=header)
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_api_key")


async def test_stored_record_does_not_hold_the_key(table: Table) -> None:
    key = await keys.create_key(table, "ana")
    assert key.startswith("vs_")
    assert key not in repr(table.records)
    assert set(table.records) == {digest_key(key)}


async def test_polling_reads_the_table_once(table: Table, client: httpx.AsyncClient) -> None:
    key = await keys.create_key(table, "ana")
    table.reads = 0
    for _ in range(50):
        assert (await client.get("/me", headers=bearer(key))).status_code == 200
    assert table.reads == 1


class Away(Table):
    """A table that is away: all who ask for it wait until it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gives_up = asyncio.Event()

    async def keys(self) -> dict[str, dict[str, Any]]:
        self.reads += 1
        await self.gives_up.wait()
        raise ServeError("The job store did not answer.", status=503, code="store_unavailable")


async def test_all_who_wait_for_a_table_that_is_away_wait_once() -> None:
    table = Away()
    async with serve(table) as client:
        asking = [asyncio.create_task(client.get("/me")) for _ in range(20)]
        leaving = asyncio.create_task(client.get("/me"))
        while not table.reads:
            await asyncio.sleep(0)
        # Long enough for every one of them to wait, in turns of the loop rather than in seconds.
        for _ in range(1000):
            await asyncio.sleep(0)
        leaving.cancel()
        table.gives_up.set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {503}
        assert table.reads == 1
        assert (await client.get("/me")).status_code == 503
        assert table.reads == 2


async def test_new_and_revoked_keys_are_seen_soon(
    table: Table, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "FRESH_UNKNOWN_S", 0.0)
    first = await keys.create_key(table, "ana")
    assert (await client.get("/me", headers=bearer(first))).status_code == 200
    second = await keys.create_key(table, "bo")
    assert (await client.get("/me", headers=bearer(second))).json()["key"] == "bo"
    await keys.revoke_key(table, "ana")
    monkeypatch.setattr(auth, "FRESH_S", 0.0)
    assert (await client.get("/me", headers=bearer(first))).status_code == 401


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "videoserve.localhost"])
async def test_without_keys_this_machine_may_all(client: httpx.AsyncClient, host: str) -> None:
    own = {"Host": host, "Origin": f"http://{host}"}
    answer = await client.post("/me", headers=own)
    assert answer.json() == {"tenant": "local", "key": "local", "queue": 100}
    assert (await client.get("/admin", headers=own)).status_code == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "[::1", ""])
async def test_rebound_name_is_refused(client: httpx.AsyncClient, method: str, host: str) -> None:
    answer = await client.request(method, "/me", headers={"Host": host})
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_host")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "http://["])
async def test_page_of_another_site_changes_nothing(client: httpx.AsyncClient, origin: str) -> None:
    answer = await client.post("/me", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_origin")


async def test_key_holder_may_come_by_any_name(table: Table, client: httpx.AsyncClient) -> None:
    key = await keys.create_key(table, "ana")
    headers = bearer(key) | {"Host": "videos.example", "Origin": "https://app.example"}
    assert (await client.post("/me", headers=headers)).status_code == 200


async def test_open_address_without_keys(table: Table) -> None:
    async with serve(table, host="0.0.0.0") as client:
        assert (await client.get("/me")).status_code == 401
    async with serve(table, host="0.0.0.0", insecure=True) as client:
        assert (await client.post("/me", headers={"Host": "box.lan"})).status_code == 200
        assert (await client.post("/me", headers={"Host": "box.lan", "Origin": "http://x"})).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert check_bind(Settings(host=host), has_keys=False) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "box.lan"])
def test_open_address_needs_keys_or_consent(host: str) -> None:
    sentence = check_bind(Settings(host=host), has_keys=False)
    assert sentence is not None
    assert host in sentence
    assert "keys add" in sentence
    assert "--insecure" in sentence
    assert check_bind(Settings(host=host), has_keys=True) is None
    assert check_bind(Settings(host=host, insecure=True), has_keys=False) is None


async def test_key_administration(table: Table) -> None:
    await keys.create_key(table, "bo", ["generate", "admin"], "studio")
    with pytest.raises(Conflict, match="'bo'"):
        await keys.create_key(table, "bo")
    with pytest.raises(InvalidField, match=r"'root'.*generate, adapters, admin"):
        await keys.create_key(table, "cy", ["root"])
    with pytest.raises(InvalidField, match="at least one scope"):
        await keys.create_key(table, "cy", [])
    (info,) = await keys.list_keys(table)
    assert (info.name, info.tenant, info.scopes) == ("bo", "studio", ("generate", "admin"))
    with pytest.raises(NotFound, match=r"'cy'.*: bo\."):
        await keys.revoke_key(table, "cy")
    await keys.revoke_key(table, "bo")
    assert await keys.list_keys(table) == []
