"""/openapi.json: complete, valid, and true."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from videoserve.api.app import DESCRIBED
from videoserve.api.schemas import CreateVideo
from videoserve.planning.limits import LIMITS

pytestmark = pytest.mark.anyio
CALLS = {
    ("post", "/v1/videos"),
    ("get", "/v1/videos"),
    ("post", "/v1/videos/sync"),
    ("get", "/v1/videos/{video_id}"),
    ("delete", "/v1/videos/{video_id}"),
    ("post", "/v1/videos/{video_id}/cancel"),
    ("post", "/v1/videos/{video_id}/remix"),
    ("get", "/v1/videos/{video_id}/content"),
    ("get", "/v1/videos/{video_id}/events"),
    ("get", "/v1/videos/{video_id}/receipt"),
    ("post", "/v1/plan"),
    ("get", "/v1/plan"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{model_id}"),
    ("post", "/v1/chat/completions"),
    ("post", "/v1/completions"),
    ("get", "/v1/workers"),
    ("get", "/v1/cache/stats"),
    ("get", "/v1/cache/entries"),
    ("delete", "/v1/cache/entries"),
    ("delete", "/v1/cache/entries/{digest}"),
    ("post", "/v1/cache/entries/{digest}/pin"),
    ("post", "/v1/cache/entries/{digest}/unpin"),
    ("get", "/v1/cache/blobs/{sha256}"),
    ("post", "/v1/loras"),
    ("get", "/v1/loras"),
    ("get", "/v1/list_loras"),
    ("get", "/v1/loras/{lora_id}"),
    ("delete", "/v1/loras/{lora_id}"),
    ("post", "/v1/loras/{lora_id}/verify"),
    ("put", "/v1/loras/{lora_id}/aliases/{alias}"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
}


def queries() -> dict[tuple[str, str], list[str]]:
    """The query parameters of every call that the document describes."""
    app = FastAPI()
    for module in DESCRIBED:
        app.include_router(module.router)
    return {
        (method, path): [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
        for path, operations in app.openapi()["paths"].items()
        for method, operation in operations.items()
    }


@pytest.fixture
async def document(client: httpx.AsyncClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    return document


async def test_every_call_is_described(document: dict[str, Any]) -> None:
    described = {(method, path) for path, item in document["paths"].items() for method in item}
    assert described >= CALLS
    ids = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("call", "known"), queries().items(), ids=lambda value: " ".join(value))
async def test_a_query_that_a_call_does_not_have(
    client: httpx.AsyncClient, document: dict[str, Any], call: tuple[str, str], known: list[str]
) -> None:
    method, path = call
    assert document["paths"][path][method]["responses"]["422"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ErrorBody"
    }
    path = path.replace("{", "").replace("}", "")
    instead = tuple(f"the nearest one is {name}." for name in known) or ("this call has none.",)
    for wrong in ("oder", "x" * 5000, ""):
        answer = await client.request(method, path, params=dict.fromkeys([*known, wrong], "1"))
        assert answer.status_code == 422
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", wrong[:80])
        assert error["message"].endswith(instead)
    # Whatever else is wrong with it.
    answer = await client.request(method, path, params=dict.fromkeys(known, "1"))
    assert "unknown_parameter" not in answer.text


async def test_headers_that_are_read_and_failures_of_pictures_are_described(document: dict[str, Any]) -> None:
    def told(method: str, path: str) -> tuple[set[str], set[str]]:
        operation = document["paths"][path][method]
        headers = {one["name"] for one in operation.get("parameters", []) if one["in"] == "header"}
        return headers, set(operation["responses"]) & {"500", "502", "504", "507"}

    pictures = {"502", "504", "507"}
    assert told("post", "/v1/videos") == ({"Idempotency-Key"}, pictures)
    assert told("post", "/v1/videos/sync") == ({"Idempotency-Key"}, pictures | {"500"})
    assert told("post", "/v1/videos/{video_id}/remix") == ({"Idempotency-Key"}, set())
    assert told("post", "/v1/plan") == (set(), pictures)
    assert told("get", "/v1/videos/{video_id}/events") == ({"Last-Event-ID"}, set())
    assert told("get", "/v1/videos/{video_id}/content") == ({"Range", "If-Range", "If-None-Match"}, set())
    # Beside what FastAPI sees by itself.
    names = {one["name"] for one in document["paths"]["/v1/videos/{video_id}/content"]["get"]["parameters"]}
    assert names >= {"video_id", "variant"}


async def test_references_lead_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for piece in text.split('"#/components/schemas/')[1:]:
        assert piece.partition('"')[0] in document["components"]["schemas"]


async def test_bodies(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data"}
    schemas = document["components"]["schemas"]
    assert set(schemas["CreateVideo"]["properties"]) == set(CreateVideo.model_fields)
    assert schemas["CreateVideo"]["required"] == ["prompt"]
    assert schemas["CreateVideoForm"]["properties"]["input_reference"]["format"] == "binary"
    for name, limit in LIMITS.items():
        number = schemas["CreateVideo"]["properties"][name]
        number = next(iter(number.get("anyOf", [number])))
        assert (number["minimum"], number["maximum"]) == (limit.low, limit.high)


async def test_the_example_works(client: httpx.AsyncClient, document: dict[str, Any]) -> None:
    for example in document["components"]["schemas"]["CreateVideo"]["examples"]:
        answer = await client.post("/v1/videos", json=example)
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == set(document["components"]["schemas"]["Video"]["properties"])


@pytest.mark.slow
def test_no_request_is_a_server_error(live: Any, tmp_path: Path) -> None:
    """schemathesis makes requests from the description and by breaking it; none may end in a 5xx or leave a trace."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{live.urls[0]}/openapi.json"]
    options = [
        "--checks=not_a_server_error",
        "--max-examples=10",
        "--phases=examples,coverage,fuzzing",
        "--seed=1",
        "--request-timeout=30",
        "--no-color",
    ]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "request failed" not in live.log()
