"""Operations: health, readiness, metrics of several processes on one page, workers, models, the page's headers."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from prometheus_client.parser import text_string_to_metric_families

from videoserve.api import models, ops, page
from videoserve.api.auth import Authenticator
from videoserve.api.keys import create_key
from videoserve.api.measure import Measured
from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.metrics import Meter, process_snapshot

pytestmark = pytest.mark.anyio


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    settings = Settings()
    card = SimpleNamespace(name="small")
    service = SimpleNamespace(settings=settings, broker=broker, card=card, chat="Chat is off.", cache=None)
    app.state.service, app.state.auth = service, Authenticator(settings, broker)
    app.state.meter, app.state.started_at = Meter(), 1000.0
    app.add_middleware(Measured, meter=app.state.meter)
    app.include_router(ops.router)
    app.include_router(models.router)
    app.include_router(page.router)

    @app.exception_handler(ServeError)
    async def told(request: Request, error: ServeError) -> JSONResponse:
        return JSONResponse({"error": {"message": error.message, "code": error.code}}, error.status)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield client


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def at(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


async def test_ready_follows_the_workers(client: httpx.AsyncClient, broker: Broker) -> None:
    assert (await client.get("/health")).json() == {"status": "ok"}
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["error"] == {"code": "not_ready", "message": "No video worker is ready: none is running."}
    await broker.heartbeat("api-1", {"kind": "api", "ready": True}, ttl=60)
    await broker.heartbeat("w1", {"kind": "video", "ready": False}, ttl=60)
    answer = await client.get("/ready")
    assert answer.status_code == 503
    assert "1 of them loading" in answer.json()["error"]["message"]
    await broker.heartbeat("w2", {"kind": "video", "ready": True}, ttl=60)
    assert (await client.get("/ready?kind=video")).json() == {"status": "ready", "kind": "video", "workers": 1}
    await broker.farewell("w2")
    assert (await client.get("/ready")).status_code == 503


async def test_ready_of_a_kind_that_does_not_exist(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ready?kind=coffee")).status_code == 422


async def test_metrics_of_every_process(client: httpx.AsyncClient, broker: Broker, make_job) -> None:  # type: ignore[no-untyped-def]
    for worker, seconds in (("w1", 0.3), ("w2", 700.0)):
        meter = Meter()
        meter.count("videoserve_jobs", kind="video", outcome="completed")
        meter.observe("videoserve_job_seconds", seconds, kind="video")
        info = {"kind": "video", "ready": True, "metrics": meter.snapshot(), "process": process_snapshot()}
        await broker.heartbeat(worker, info, ttl=60)
    await broker.submit([make_job("video_1"), make_job("video_2")], idempotency=None, queue_limit=9, key_queue_limit=9)
    same = [make_job(f"video_{number}") for number in (3, 4, 5)]
    await broker.submit(
        same, idempotency=None, queue_limit=9, key_queue_limit=9, twins={job.id: "same" for job in same}
    )
    await client.get("/health")
    await client.get("/nowhere/at/all")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(answer.text)
    assert found[at("videoserve_jobs_queued", kind="video")] == 3
    assert found[at("videoserve_jobs_following", kind="video")] == 2
    assert found[at("videoserve_jobs_answered_total", kind="video")] == 0
    assert found[at("videoserve_jobs_running", kind="video")] == 0
    assert found[at("videoserve_workers", kind="video", ready="yes")] == 2
    for worker, below in (("w1", 1), ("w2", 0)):
        assert found[at("videoserve_jobs_total", kind="video", outcome="completed", process=worker)] == 1
        assert found[at("videoserve_job_seconds_bucket", kind="video", le="0.5", process=worker)] == below
        assert found[at("videoserve_job_seconds_bucket", kind="video", le="+Inf", process=worker)] == 1
        assert found[at("process_resident_memory_bytes", process=worker)] > 1e6
    requests = {dict(labels)["route"]: value for (name, labels), value in found.items() if "requests_total" in name}
    assert requests == {"/health": 1, "none": 1}


async def test_workers_and_models(client: httpx.AsyncClient, broker: Broker) -> None:
    info = {"kind": "video", "ready": True, "model": "small", "jobs": ["video_1"], "metrics": [], "process": {}}
    await broker.heartbeat("w1", info, ttl=60)
    await broker.heartbeat("api-1", {"kind": "api", "ready": True}, ttl=60)
    (worker,) = (await client.get("/v1/workers")).json()["data"]
    expected = {"object": "worker", "id": "w1", "kind": "video", "ready": True, "model": "small", "jobs": ["video_1"]}
    assert worker == expected
    models = (await client.get("/v1/models")).json()
    assert models["object"] == "list"
    assert [(m["id"], m["object"], type(m["created"])) for m in models["data"]] == [("small", "model", int)]


async def test_where_keys_exist(client: httpx.AsyncClient, broker: Broker) -> None:
    user = {"Authorization": "Bearer " + await create_key(broker, "ana", ["generate"])}
    admin = {"Authorization": "Bearer " + await create_key(broker, "root", ["admin"])}
    outcomes = {
        path: [(await client.get(path, headers=headers)).status_code for headers in ({}, user, admin)]
        for path in ("/health", "/metrics", "/v1/workers", "/v1/models", "/")
    }
    assert outcomes == {
        "/health": [200, 200, 200],
        "/metrics": [401, 403, 200],
        "/v1/workers": [401, 403, 200],
        "/v1/models": [401, 200, 403],
        "/": [200, 200, 200],
    }


async def test_page_may_do_nothing_but_talk_to_this_server(client: httpx.AsyncClient) -> None:
    index = await client.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    for name, media_type in page.FILES.items():
        answer = await client.get(f"/web/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media_type)
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "<style" not in index.text
    assert " style=" not in index.text


@pytest.mark.parametrize("name", ["..%2F..%2Fconfig.py", "__init__.py", "nothing.js"])
async def test_other_files_are_not_served(client: httpx.AsyncClient, name: str) -> None:
    assert (await client.get(f"/web/{name}")).status_code == 404


def test_meter_refuses_what_is_not_defined() -> None:
    meter = Meter()
    with pytest.raises(KeyError):
        meter.count("videoserve_nothing")
    with pytest.raises(AssertionError, match="has the labels"):
        meter.count("videoserve_jobs", kind="video")
    with pytest.raises(AssertionError, match="is a counter"):
        meter.set("videoserve_jobs", 1, kind="video", outcome="completed")
