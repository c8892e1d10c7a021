"""Adapters over HTTP: what is kept under which name, for whom, and for how long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.adapter_bytes import adapter, file, pair
from videoserve.api.keys import create_key
from videoserve.broker import Broker
from videoserve.storage.adapters import Quota

pytestmark = pytest.mark.anyio
Add = Callable[..., Awaitable[httpx.Response]]


def refused(answer: httpx.Response, status: int, code: str, *words: str) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    for word in words:
        assert word in error["message"]
    return error


async def test_an_adapter_is_checked_and_kept(add: Add, client: httpx.AsyncClient) -> None:
    answer = await add(adapter(), name="style")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["name"], made["version"], made["base_model"], made["shared"]) == ("style", 1, "demo", False)
    assert made["report"]["parts"]["any"]["modules"] == 1
    assert made["report"]["layout"] == "comfyui"
    assert 0 < made["report"]["parts"]["any"]["ratio"]["attn1"] < 0.5
    assert made["files"][0]["bytes"] == len(adapter())
    for name in (made["id"], "style", "style@1", made["digest"]):
        assert (await client.get(f"/v1/loras/{name}")).json() == made
    assert (await client.get("/v1/loras")).json()["data"] == [made]
    listed = (await client.get("/v1/list_loras")).json()
    assert listed == {"loaded_adapters": [{"nickname": "style", "path": made["id"]}], "active": {}}


async def test_the_same_again_is_what_it_was(add: Add) -> None:
    first = (await add(adapter())).json()
    # Another layout of the same change, and metadata that says otherwise.
    again = {key.replace("diffusion_model", "model.diffusion_model"): tensor for key, tensor in pair().items()}
    for content in (adapter(), file(again), file(pair(), {"ss_network_alpha": "200"})):
        answer = await add(content)
        assert (answer.status_code, answer.json()) == (200, first)
    refused(await add(adapter(), steps="4"), 409, "name_taken", "with steps None, not 4")


async def test_other_content_of_a_name_is_a_new_version_only_if_said(add: Add, client: httpx.AsyncClient) -> None:
    first = (await add(adapter(1))).json()
    refused(await add(adapter(2)), 409, "name_taken", "'style' is taken by another adapter", "replace")
    assert (await client.get("/v1/loras/style")).json() == first
    second = (await add(adapter(2), replace="true")).json()
    assert (second["id"], second["version"]) == (first["id"], 2)
    assert [version["digest"] for version in second["versions"]] == [first["digest"], second["digest"]]
    assert (await client.get("/v1/loras/style@1")).json()["digest"] == first["digest"]
    refused(await client.get("/v1/loras/style@3"), 404, "not_found")


async def test_one_file_under_two_names(add: Add, client: httpx.AsyncClient) -> None:
    one, two = (await add(adapter(), name="a")).json(), (await add(adapter(), name="b")).json()
    assert one["digest"] == two["digest"]
    assert one["id"] != two["id"]
    assert (await client.delete("/v1/loras/a")).json() == {"id": one["id"], "object": "lora.deleted", "deleted": True}
    assert (await client.get("/v1/loras/b")).json() == two


async def test_what_cannot_be_a_name(add: Add, client: httpx.AsyncClient) -> None:
    names = ("v1.5 style/ünïcode", "../../etc/passwd", "A", "-a", "a" * 65, "a@1", "lora_" + "0" * 32)
    for name in names:
        error = refused(await add(adapter(), name=name), 422, "invalid_value")
        assert error["param"] == "name"
        assert name.startswith("lora_") or "^[a-z0-9][a-z0-9_-]{0,63}$" in error["message"]
    assert (await client.get("/v1/loras")).json()["data"] == []


async def test_aliases(add: Add, client: httpx.AsyncClient) -> None:
    first = (await add(adapter(1))).json()
    await client.put("/v1/loras/style/aliases/newest")
    named = (await client.put(f"/v1/loras/{first['id']}@1/aliases/stable")).json()
    assert named["aliases"] == ["newest", "stable"]
    second = (await add(adapter(2), replace="1")).json()
    assert (await client.get("/v1/loras/newest")).json()["digest"] == second["digest"]
    assert (await client.get("/v1/loras/stable")).json()["digest"] == first["digest"]
    refused(await client.put("/v1/loras/style/aliases/style"), 409, "name_taken", "own")
    refused(await client.put("/v1/loras/style/aliases/Bad"), 422, "invalid_value", "^[a-z0-9]")
    refused(await client.put("/v1/loras/nothing/aliases/a"), 404, "not_found")
    assert (await client.delete("/v1/loras/stable")).json()["id"] == "stable"
    refused(await client.get("/v1/loras/stable"), 404, "not_found")
    refused(await client.delete("/v1/loras/style@1"), 422, "invalid_value", "one version")
    assert (await client.delete("/v1/loras/newest")).status_code == 200
    await client.put("/v1/loras/style/aliases/newest")
    assert (await client.delete("/v1/loras/style")).status_code == 200
    refused(await client.get("/v1/loras/newest"), 404, "not_found")
    # The name is free, and so is the alias.
    assert (await add(adapter(3), name="newest")).status_code == 201


async def test_pages(add: Add, client: httpx.AsyncClient) -> None:
    ids = [(await add(adapter(seed), name=f"a{seed}")).json()["id"] for seed in range(3)]
    page = (await client.get("/v1/loras?limit=2")).json()
    assert [each["id"] for each in page["data"]] == ids[:0:-1]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, ids[2], ids[1])
    page = (await client.get(f"/v1/loras?limit=500&after={ids[1]}")).json()
    assert [each["id"] for each in page["data"]] == ids[:1]
    assert (page["has_more"], page["adjustments"]) == (False, ["limit is 500; a page has at most 100: 100 is used."])
    assert (await client.get("/v1/loras?order=asc")).json()["first_id"] == ids[0]
    refused(await client.get("/v1/loras?after=nothing"), 404, "not_found")
    assert (await client.get(f"/v1/loras?after={ids[0]}")).json()["data"] == []


@pytest.fixture
async def as_key(client: httpx.AsyncClient, broker: Broker) -> Callable[..., Awaitable[dict[str, str]]]:
    async def headers(name: str, *scopes: str, tenant: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {await create_key(broker, name, scopes, tenant)}"}

    return headers


async def test_tenants_neither_see_nor_probe_each_other(client: httpx.AsyncClient, as_key: Any, data_url: str) -> None:
    ana, ben = await as_key("ana", "generate", "adapters"), await as_key("ben", "generate", "adapters")
    upload = {"data": {"name": "style"}, "files": {"file": ("a.safetensors", adapter())}}
    made = (await client.post("/v1/loras", headers=ana, **upload)).json()  # type: ignore[arg-type]
    for reference in (made["id"], "style", "style@1", made["digest"]):
        theirs = await client.get(f"/v1/loras/{reference}", headers=ben)
        nobodys = await client.get(f"/v1/loras/{reference[:-1]}x", headers=ben)
        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.json()["error"]["message"] == f"There is no adapter {reference!r}."
        assert (await client.delete(f"/v1/loras/{reference}", headers=ben)).status_code == 404
        body = {"prompt": "", "input_reference": data_url, "lora": [{"id": reference}]}
        assert (await client.post("/v1/videos", headers=ben, json=body)).status_code == 404
    assert (await client.get("/v1/loras", headers=ben)).json()["data"] == []
    # The same bytes are new to whoever has not sent them, and what they become is theirs alone.
    answer = await client.post("/v1/loras", headers=ben, **upload)  # type: ignore[arg-type]
    assert answer.status_code == 201
    assert answer.json()["id"] != made["id"]
    assert (await client.delete("/v1/loras/style", headers=ben)).status_code == 200
    assert (await client.get("/v1/loras/style", headers=ana)).json() == made


async def test_writing_needs_a_scope_of_its_own(client: httpx.AsyncClient, as_key: Any) -> None:
    reader = await as_key("reader", "generate", tenant="t")
    writer = await as_key("writer", "adapters", tenant="t")
    nobody = await as_key("nobody", "admin", tenant="t")
    upload = {"data": {"name": "style"}, "files": {"file": ("a.safetensors", adapter())}}
    assert (await client.post("/v1/loras", headers=writer, **upload)).status_code == 201  # type: ignore[arg-type]
    for headers, reads in ((reader, 200), (writer, 200), (nobody, 403)):
        assert (await client.get("/v1/loras/style", headers=headers)).status_code == reads
    for answer in (
        await client.post("/v1/loras", headers=reader, **upload),  # type: ignore[arg-type]
        await client.put("/v1/loras/style/aliases/a", headers=reader),
        await client.delete("/v1/loras/style", headers=reader),
    ):
        refused(answer, 403, "missing_scope", "needs adapters")
    assert (await client.get("/v1/loras")).status_code == 401


@pytest.fixture
def limited(app: FastAPI) -> Callable[..., None]:
    """limited(adapter_bytes=…, …) changes the limits of the running server."""

    def change(**limits: int) -> None:
        service = app.state.service
        service.settings = service.settings.model_copy(update=limits)
        now = service.settings
        service.adapters.quota = Quota(size=now.adapter_quota_bytes, names=now.adapters_max)

    return change


async def test_a_tenant_has_a_quota(add: Add, client: httpx.AsyncClient, limited: Callable[..., None]) -> None:
    size = (await add(adapter(1), name="a")).json()["bytes"]
    limited(adapter_quota_bytes=2 * size)
    assert (await add(adapter(2), name="b")).status_code == 201
    refused(await add(adapter(3), name="c"), 429, "adapter_quota", f"at most {2 * size} are allowed")
    # What is there already takes no more.
    assert (await add(adapter(2), name="c")).status_code == 201
    await client.delete("/v1/loras/a")
    assert (await add(adapter(3), name="d")).status_code == 201
    limited(adapters_max=3, adapter_quota_bytes=99 * size)
    refused(await add(adapter(4), name="e"), 429, "adapter_quota", "You have 3 adapters and aliases")
    refused(await client.put("/v1/loras/d/aliases/f"), 429, "adapter_quota")


async def test_sizes_and_room(add: Add, limited: Callable[..., None], app: FastAPI) -> None:
    size = len(adapter())
    limited(adapter_bytes=size)
    assert (await add(adapter())).status_code == 201
    limited(adapter_bytes=size - 1)
    refused(await add(adapter(2), name="b"), 413, "body_too_large", str(size - 1))
    limited(adapter_bytes=size, disk_floor_bytes=2**60)
    refused(await add(adapter(2), name="b"), 507, "storage_full")
    assert list((app.state.service.adapters.store.root / "tmp").iterdir()) == []


async def test_uploads_at_once_are_bounded(add: Add, app: FastAPI) -> None:
    app.state.service.uploads["local"] = 4
    refused(await add(adapter()), 429, "upload_limit", "4 of your uploads")
    del app.state.service.uploads["local"]
    answers = await asyncio.gather(*(add(adapter(seed), name=f"a{seed}") for seed in range(3)))
    assert [answer.status_code for answer in answers] == [201] * 3
    assert not app.state.service.uploads


async def test_verify(add: Add, client: httpx.AsyncClient, broker: Broker, app: FastAPI) -> None:
    made = (await add(adapter())).json()
    refused(await client.post("/v1/loras/style/verify"), 409, "not_ready", "no worker with demo is ready")
    await broker.heartbeat("w", {"kind": "video", "ready": True, "model": "demo"}, ttl=60)
    told = (await client.post("/v1/loras/style/verify")).json()
    assert (told["id"], told["digest"], told["model"], told["workers"]) == (made["id"], made["digest"], "demo", 1)
    refused(await client.post("/v1/loras/nothing/verify"), 404, "not_found")
    path = app.state.service.adapters.store.path(made["digest"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    refused(await client.post("/v1/loras/style/verify"), 409, "adapter_damaged", "upload it again")
    assert (await add(adapter())).status_code == 200
    assert (await client.post("/v1/loras/style/verify")).json() == told


UNUSABLE: list[tuple[dict[str, Any], str, str]] = [
    ({"base_model": "other"}, "base_model", "this server has demo"),
    ({"target": "middle"}, "target", "all, high, low"),
    ({"target": "low"}, "file", "one transformer"),
    ({"alpha": "x"}, "alpha", "above zero"),
    ({"alpha": "-1"}, "file", "above zero"),
    ({"alpha": "nan"}, "file", "above zero"),
    ({"steps": "0"}, "steps", "from 1 to 1000"),
    ({"replace": "maybe"}, "replace", "true or false"),
    ({"allow_unused": "imgae"}, "file", "image and text_encoder are allowed"),
    ({"nme": "a"}, "nme", "the nearest one is name"),
    ({"name": ["a", "b"]}, "name", "has 2 values"),
    ({"name": ""}, "name", "is missing"),
    ({"name": "a" * 5000}, "name", "more than 4096 bytes"),
]


async def test_fields_that_cannot_be_used(add: Add) -> None:
    for fields, param, words in UNUSABLE:
        answer = await add(adapter(), **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (404 if param == "base_model" else 422, param), answer.text
        assert words in error["message"]


async def test_a_form_without_a_file(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/loras", files={"name": (None, "a")})
    assert refused(answer, 422, "invalid_value", "file is missing")["param"] == "file"
    answer = await client.post("/v1/loras", json={"name": "a"})
    refused(answer, 415, "unsupported_media_type", "multipart/form-data")
