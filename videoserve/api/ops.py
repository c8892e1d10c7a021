"""Operations: is it up, is it ready, what runs where, what does it count."""

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from videoserve.api.auth import Caller, require
from videoserve.api.cache_metrics import families
from videoserve.api.describe import failures
from videoserve.api.head import ReadRoute
from videoserve.api.measure import api_info, api_process_id
from videoserve.api.service import Served, Service
from videoserve.errors import ServeError
from videoserve.metrics import page
from videoserve_cache.tiers import Away

Kind = Literal["video", "chat"]
KINDS: Final[tuple[Kind, ...]] = ("video", "chat")
# What a worker tells about itself beyond what /v1/workers shows.
UNSHOWN: Final = ("metrics", "process")

router = APIRouter(tags=["operations"], route_class=ReadRoute)


@router.get("/health")
async def health() -> dict[str, str]:
    """This API process answers. Whether a video could be made is what /ready says."""
    return {"status": "ok"}


@router.get("/ready", responses=failures())
async def ready(service: Served, kind: Kind = "video") -> dict[str, Any]:
    """A worker of this kind is alive and has loaded its model; otherwise 503 and a sentence."""
    workers = [worker for worker in await service.broker.workers() if worker["kind"] == kind]
    able = [worker for worker in workers if worker["ready"]]
    if not able:
        why = f"{len(workers)} of them loading or draining" if workers else "none is running"
        raise ServeError(f"No {kind} worker is ready: {why}.", status=503, code="not_ready")
    return {"status": "ready", "kind": kind, "workers": len(able)}


@router.get(
    "/metrics",
    response_class=Response,
    responses=failures() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request, service: Served, caller: Annotated[Caller, Depends(require("admin"))]) -> Response:
    """Prometheus text: the counts of all API processes and workers, and the queues."""
    broker, state = service.broker, request.app.state
    snapshots = {worker["id"]: worker for worker in await broker.workers()}
    # This process knows its own better than its last heartbeat does.
    snapshots[api_process_id()] = api_info(state.meter, state.started_at)
    depths = {kind: await broker.depth(kind) for kind in KINDS}
    twins = {kind: await broker.twins(kind) for kind in KINDS}
    gauges = [*_queue_gauges(depths), *_twin_families(twins), _worker_gauge(snapshots), *await _cache_families(service)]
    text = page(snapshots, gauges)
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/workers", responses=failures())
async def workers(service: Served, caller: Annotated[Caller, Depends(require("admin"))]) -> dict[str, Any]:
    """The living workers: kind, model, whether loaded, which jobs they hold."""
    found = [worker for worker in await service.broker.workers() if worker["kind"] in KINDS]
    shown = [{name: value for name, value in worker.items() if name not in UNSHOWN} for worker in found]
    return {"object": "list", "data": [{"object": "worker"} | worker for worker in shown]}


@router.get("/v1/plan", responses=failures())
async def plans(service: Served, caller: Annotated[Caller, Depends(require("generate"))]) -> dict[str, Any]:
    """How the ready workers share their videos among their ranks, with guidance and without.

    What one request would become, and take, is what POST /v1/plan answers.
    """
    found = [worker for worker in await service.broker.workers() if worker["ready"] and worker.get("plans")]
    shown = [{name: worker.get(name) for name in ("id", "model", "ranks", "parallel", "plans")} for worker in found]
    return {"object": "list", "data": [{"object": "worker.plan"} | plan for plan in shown]}


async def _cache_families(service: Service) -> list[Metric]:
    """None where nothing is kept, and while the index is away: what it counted is told later."""
    if service.cache is None:
        return []
    try:
        return list(families(await asyncio.to_thread(service.cache.stats)))
    except Away:
        return []


def _queue_gauges(depths: dict[Kind, dict[str, int]]) -> Iterator[Metric]:
    queued = GaugeMetricFamily("videoserve_jobs_queued", "Jobs that wait.", labels=["kind"])
    running = GaugeMetricFamily("videoserve_jobs_running", "Jobs that a worker holds.", labels=["kind"])
    for kind, depth in depths.items():
        queued.add_metric([kind], depth["queued"])
        running.add_metric([kind], depth["running"])
    yield from (queued, running)
    outbox = max((depth["webhooks"] for depth in depths.values()), default=0)
    yield GaugeMetricFamily("videoserve_webhooks_pending", "Webhook deliveries not yet settled.", value=outbox)


def _twin_families(twins: dict[Kind, dict[str, int]]) -> Iterator[Metric]:
    about = "Jobs that wait for another one's video, which is the same; they are not among those queued."
    waiting = GaugeMetricFamily("videoserve_jobs_following", about, labels=["kind"])
    answered = CounterMetricFamily(
        "videoserve_jobs_answered", "Jobs that got the video they waited for.", labels=["kind"]
    )
    for kind, counts in twins.items():
        waiting.add_metric([kind], counts["waiting"])
        answered.add_metric([kind], counts["answered"])
    yield from (waiting, answered)


def _worker_gauge(snapshots: dict[str, dict[str, Any]]) -> Metric:
    gauge = GaugeMetricFamily("videoserve_workers", "Living processes by kind and readiness.", labels=["kind", "ready"])
    counts: dict[tuple[str, str], int] = {}
    for info in snapshots.values():
        place = (info["kind"], "yes" if info["ready"] else "no")
        counts[place] = counts.get(place, 0) + 1
    for place, count in sorted(counts.items()):
        gauge.add_metric(place, count)
    return gauge
