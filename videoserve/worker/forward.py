"""From the engine's events to the broker: in order, fenced, and patient while Redis is away."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import TypeVar

from videoserve.broker.broker import Broker
from videoserve.broker.state import Claim
from videoserve.errors import FenceLost, ServeError
from videoserve.storage.files import FileStore
from videoserve.types import Event, Output

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_S = 0.5


class Ending(Enum):
    """Why nothing more is forwarded for a job."""

    REPORTED = "reported"
    LOST = "lost"


async def until_stored(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of a broker call, asked again for as long as the store is away; every other error is raised."""
    warned = False
    while True:
        try:
            return await call()
        except ServeError as error:
            if error.code != "store_unavailable":
                raise
            if not warned:
                log.warning("the store does not answer; computing goes on and results wait here")
                warned = True
        await asyncio.sleep(RETRY_S)


class Forwarder:
    """The events of one claimed job on their way to the broker. `run` ends with the job, or with its lease.

    `outcome` says how the job ended, once it has: completed, failed, cancelled, or lost to another worker.
    """

    def __init__(self, broker: Broker, files: FileStore, claim: Claim):
        self._broker = broker
        self._files = files
        self._claim = claim
        self._outbox: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.outcome = "lost"

    def add(self, event: Event) -> None:
        if not self._closed:
            self._outbox.append(event)
            self._idle.clear()
            self._arrived.set()

    def close(self) -> None:
        """Nothing more is reported; `run` ends."""
        self._closed = True
        self._outbox.clear()
        self._arrived.set()

    async def flushed(self) -> None:
        """Waits until the broker has everything added so far."""
        await self._idle.wait()

    async def run(self) -> Ending:
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                if self._closed:
                    return Ending.LOST
                if await self._send():
                    return Ending.REPORTED
                if not self._outbox:
                    self._idle.set()
        except FenceLost:
            return Ending.LOST
        finally:
            self._idle.set()

    async def _send(self) -> bool:
        """Everything that waits, in as few calls as its order allows; True when the job has ended."""
        events: list[Event] = []
        while self._outbox:
            event = self._outbox.popleft()
            if event.kind in ("done", "failed"):
                await self._record(events)
                await self._end(event)
                return True
            events.append(event)
            # A checkpoint a call: the broker then frees each one that the next replaces.
            if event.kind == "checkpoint":
                await self._record(events)
                events = []
        await self._record(events)
        return False

    async def _record(self, events: list[Event]) -> None:
        if events:
            job, fence = self._claim.job.id, self._claim.fence
            await self._drop(await until_stored(lambda: self._broker.record(job, fence, events)))

    async def _end(self, event: Event) -> None:
        job, fence, data = self._claim.job.id, self._claim.fence, event.data
        if event.kind == "done":
            outputs = {variant: Output.from_dict(output) for variant, output in data["outputs"].items()}
            freed = await until_stored(lambda: self._broker.finish(job, fence, outputs, data["receipt"]))
            self.outcome = "completed"
        else:
            code, message, retry = data["code"], data["message"], data["retry"]
            freed = await until_stored(lambda: self._broker.fail(job, fence, code, message, retry=retry))
            self.outcome = "cancelled" if code == "cancelled" else "failed"
        await self._drop(freed)

    async def _drop(self, digests: Iterable[str]) -> None:
        """Files that no job needs any more: checkpoints that were replaced or whose job has ended."""
        for digest in digests:
            await asyncio.to_thread(self._files.delete, digest)
