"""From the engine's events to the broker: in order, fenced, and patient while Redis is away."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from functools import partial

from videoserve.broker.broker import Broker
from videoserve.broker.leases import new_call
from videoserve.broker.patience import until_stored
from videoserve.broker.state import Claim
from videoserve.errors import FenceLost, ServeError
from videoserve.storage.files import FAILING, FileStore
from videoserve.types import Event, Output
from videoserve.worker.storing import can_store
from videoserve.worker.teller import Teller

log = logging.getLogger(__name__)

RESULT_DELETED = "The result was deleted, with a video of the same bytes, before it could be recorded."


class Ending(Enum):
    """Why nothing more is forwarded for a job."""

    REPORTED = "reported"
    LOST = "lost"


class Forwarder:
    """The events of one claimed job on their way to the broker. `run` ends with the job, or with its lease.

    `outcome` says how the job ended, once it has: completed, failed, cancelled, handed back because its files
    could not be stored, or lost to another worker.
    """

    def __init__(self, broker: Broker, files: FileStore, claim: Claim, teller: Teller):
        self._broker = broker
        self._teller = teller
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
        if events and all(event.kind == "tokens" for event in events):
            await self._teller.tell(self._claim, events)
        elif events:
            job, fence, call = self._claim.job.id, self._claim.fence, new_call()
            await self._drop(lambda: self._broker.record(job, fence, events, call=call))

    async def _end(self, event: Event) -> None:
        job, fence, data = self._claim.job.id, self._claim.fence, event.data
        if event.kind == "done":
            outputs = {variant: Output.from_dict(output) for variant, output in data["outputs"].items()}
            # The same in every attempt, so that the last one ends the holds of those before it.
            hold = f"output_{job}"
            if await self._kept({output.sha256 for output in outputs.values()}, hold):
                receipt, twin = data["receipt"], data.get("twin")
                await self._drop(
                    lambda: self._broker.finish(job, fence, outputs, receipt, hold=hold, twin_receipt=twin)
                )
                self.outcome = "completed"
                return
            data = {"code": "result_deleted", "message": RESULT_DELETED, "retry": True}
        code, message, retry = data["code"], data["message"], data["retry"]
        if code in FAILING and not await can_store(self._files):
            await self._drop(lambda: self._broker.release(job, fence))
            self.outcome = "handed_back"
            return
        await self._drop(lambda: self._broker.fail(job, fence, code, message, retry=retry))
        self.outcome = "cancelled" if code == "cancelled" else "failed"

    async def _kept(self, digests: Iterable[str], hold: str) -> bool:
        """Whether all of these files are there, and then to stay until the job is finished with the same `hold`.

        Another job with the same bytes may have ended and been deleted since they were put.
        """
        for digest in digests:
            await until_stored(partial(self._broker.hold, digest, hold))
            if not await until_stored(partial(asyncio.to_thread, self._files.keep, digest)):
                return False
        return True

    async def _drop(self, call: Callable[[], Awaitable[list[str]]]) -> None:
        """Makes a call to the broker and deletes the files that it frees: checkpoints, and results nobody wants."""
        began = time.time()
        for digest in await until_stored(call):
            try:
                # Whoever has put the same bytes since then is about to name them.
                await asyncio.to_thread(self._files.delete, digest, last_put_before=began)
            except (ServeError, OSError) as error:
                # The job itself is fine; the janitor sweeps the file up later.
                log.warning("a file nobody needs was not deleted", extra={"sha256": digest, "reason": str(error)})
