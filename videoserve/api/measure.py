"""Counts and times every answer of an API process, and publishes its counts for whichever process shows them."""

import asyncio
import logging
import os
import socket
import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from videoserve.broker.broker import Broker
from videoserve.errors import ServeError
from videoserve.metrics import Meter, process_snapshot

log = logging.getLogger(__name__)

BEAT_S: Final = 2.0
BEAT_TTL_S: Final = 3 * BEAT_S
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Measured:
    """ASGI middleware: one count and one duration for each answer, by the route's pattern, never by its values."""

    def __init__(self, app: ASGIApp, meter: Meter):
        self._app = app
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, counted)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # The router leaves the route it found in the scope; a path that leads nowhere must not become a label.
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._meter.count("videoserve_http_requests", method=method, route=route, status=str(status))
        self._meter.observe("videoserve_http_seconds", seconds, route=route)


def api_process_id() -> str:
    return f"api-{socket.gethostname()}-{os.getpid()}"


def api_info(meter: Meter, started_at: float) -> dict[str, Any]:
    """What an API process tells about itself in its heartbeat."""
    return {
        "kind": "api",
        "ready": True,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_at": started_at,
        "metrics": meter.snapshot(),
        "process": process_snapshot(),
    }


async def announce(broker: Broker, meter: Meter, started_at: float) -> None:
    """Publishes this API process's counts every few seconds, until cancelled."""
    while True:
        try:
            await broker.heartbeat(api_process_id(), api_info(meter, started_at), ttl=BEAT_TTL_S)
        except ServeError as error:
            log.warning("the store does not hear this API process", extra={"reason": error.message})
        await asyncio.sleep(BEAT_S)
