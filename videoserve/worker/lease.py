"""The leases a worker holds: renewed while it lives, watched for cancellation, given up when the fence is lost."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

from videoserve.broker.broker import Broker
from videoserve.broker.state import Claim
from videoserve.errors import FenceLost, ServeError
from videoserve.types import Event, Stage
from videoserve.worker.forward import Forwarder

log = logging.getLogger(__name__)

WATCH_S = 0.08


@dataclass(slots=True, eq=False)
class Held:
    """A job this worker answers for, from its claim on.

    admitted  the engine has it: what it emits from now on belongs to this lease, and not to an earlier one
    stopping  it is being cancelled or given up
    given_up  it is another worker's, or back in the queue
    advanced  it has come to a checkpoint behind the one it was claimed with
    """

    claim: Claim
    forwarder: Forwarder
    admitted: bool = False
    stopping: bool = False
    given_up: bool = False
    advanced: bool = False

    def set_admitted(self) -> None:
        self.admitted = True

    @property
    def id(self) -> str:
        return self.claim.job.id

    def forward(self, event: Event) -> None:
        """Sends what the engine emits on its way to the broker."""
        before = self.claim.checkpoint
        if event.kind == "checkpoint" and (before is None or place(event.data) > place(before)):
            self.advanced = True
        self.forwarder.add(event)


def place(checkpoint: dict[str, Any]) -> tuple[int, int]:
    """Where in its life a job is at a checkpoint: later is greater."""
    return get_args(Stage).index(checkpoint["stage"]), checkpoint["step"]


class Leases:
    """Every held job. For each, `on_cancelled` or `on_lost` is called at most once."""

    def __init__(
        self,
        broker: Broker,
        lease_s: float,
        on_cancelled: Callable[[Held], None],
        on_lost: Callable[[Held], None],
    ):
        self._broker = broker
        self._lease_s = lease_s
        self._on_cancelled = on_cancelled
        self._on_lost = on_lost
        self._held: dict[str, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(tuple(self._held.values()))

    def ids(self) -> list[str]:
        return list(self._held)

    def get(self, job_id: str) -> Held | None:
        return self._held.get(job_id)

    def add(self, held: Held) -> None:
        self._held[held.id] = held

    def drop(self, held: Held) -> None:
        """Forgets it, unless the same job has been claimed anew since."""
        if self._held.get(held.id) is held:
            del self._held[held.id]

    async def emptied(self, deadline: float) -> None:
        """Waits until no job is held, at most to `deadline` of the monotonic clock."""
        while self._held and time.monotonic() < deadline:
            await asyncio.sleep(WATCH_S)

    async def renew(self) -> None:
        """The loop that keeps the leases."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await asyncio.gather(*(self._renew(held) for held in self if not held.stopping))

    async def watch(self) -> None:
        """The loop that sees within about a tenth of a second that a job is to stop."""
        while True:
            await asyncio.sleep(WATCH_S)
            running = {held.id: held for held in self if not held.stopping}
            if not running:
                continue
            try:
                cancelled = await self._broker.cancelled(list(running))
            except ServeError as error:
                log.debug("cancellations cannot be seen", extra={"reason": error.message})
                continue
            for job_id in cancelled:
                self._stop(running[job_id], self._on_cancelled)

    async def _renew(self, held: Held) -> None:
        try:
            if await self._broker.renew(held.id, held.claim.fence):
                self._stop(held, self._on_cancelled)
        except FenceLost:
            self._stop(held, self._on_lost)
        except ServeError as error:
            # The lease may run out and pass to another worker; until the store says so, the work is still wanted.
            log.warning("lease not renewed", extra={"job": held.id, "reason": error.message})

    def _stop(self, held: Held, told: Callable[[Held], None]) -> None:
        if not held.stopping:
            held.stopping = True
            told(held)
