"""/openapi.json: complete, valid, and true."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

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
    ("get", "/v1/workers"),
    ("get", "/health"),
    ("get", "/ready"),
    ("get", "/metrics"),
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
