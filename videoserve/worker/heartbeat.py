"""A worker's signs of life: what it is, whether it is ready, what it works on."""

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping

from videoserve.broker.broker import Broker
from videoserve.errors import ServeError
from videoserve.metrics import Meter, process_snapshot

log = logging.getLogger(__name__)

EVERY_S = 2.0
# Three missed beats, and the worker is not there any more.
TTL_S = 3 * EVERY_S


class Heartbeat:
    """Tells the broker about this worker every two seconds, and at once when `ready` changes."""

    def __init__(
        self,
        broker: Broker,
        kind: str,
        model: str,
        jobs: Callable[[], list[str]],
        meter: Meter,
        shown: Mapping[str, object],
    ):
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.kind = kind
        self.model = model
        self.ready = False
        self._broker = broker
        self._jobs = jobs
        self._meter = meter
        self._shown = shown
        self._started_at = time.time()
        self._changed = asyncio.Event()

    def set_ready(self, ready: bool) -> None:
        self.ready = ready
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._broker.heartbeat(self.worker_id, self._info(), TTL_S)
            except ServeError as error:
                log.warning("the store does not hear this worker", extra={"reason": error.message})
            try:
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
            except TimeoutError:
                continue

    def _info(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "model": self.model,
            "ready": self.ready,
            **self._shown,
            "jobs": self._jobs(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started_at": self._started_at,
            "metrics": self._meter.snapshot(),
            "process": process_snapshot(),
        }
