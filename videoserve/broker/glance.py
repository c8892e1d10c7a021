"""The reading for pollers: hundreds of them ask for the same unchanged jobs beside a model that needs the machine."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from videoserve.broker.calls import Policy
from videoserve.broker.jobs import JobCalls
from videoserve.broker.keys import KEYS
from videoserve.broker.link import AWAY, Link
from videoserve.broker.state import JobState
from videoserve.types import Job

REMEMBERED: Final = 4096
# A reading older than this is not used even when no change was told: a dead network tells nothing.
FRESH_S: Final = 5.0
# The place in the queue changes without a change of the job.
FRESH_QUEUED_S: Final = 2.0
RECONNECT_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """A reading and the event loop's time until which it may be shown."""

    job: Job
    state: JobState
    until: float


class GlanceCalls(JobCalls):
    def __init__(self, link: Link, policy: Policy):
        super().__init__(link, policy)
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._reading: dict[str, object] = {}
        self._listening = False
        self._listener: asyncio.Task[None] | None = None

    async def glance(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState] | None:
        """What `get` answers, from memory for as long as Redis has told of no change.

        A change made anywhere shows within about a millisecond, a queue position within two seconds.
        """
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())
        now = asyncio.get_running_loop().time()
        seen = self._seen.get(job_id)
        if seen is None or seen.until < now:
            return await self._look(job_id, tenant, now)
        return (seen.job, seen.state) if tenant is None or seen.job.tenant == tenant else None

    async def cancel(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState]:
        try:
            return await super().cancel(job_id, tenant)
        finally:
            # Whoever cancelled through this very process sees it at once.
            self._forget(job_id)

    async def delete(self, job_id: str, tenant: str | None = None) -> list[str]:
        try:
            return await super().delete(job_id, tenant)
        finally:
            self._forget(job_id)

    def _forget(self, job_id: str) -> None:
        self._seen.pop(job_id, None)
        self._reading.pop(job_id, None)

    async def _look(self, job_id: str, tenant: str | None, now: float) -> tuple[Job, JobState] | None:
        # A change told while this reading was under way takes the mark away: the reading may be the older one.
        mark = self._reading[job_id] = object()
        try:
            found = await self.get(job_id)
        finally:
            current = self._reading.get(job_id) is mark
            if current:
                del self._reading[job_id]
        if found is None:
            return None
        job, state = found
        if current and self._listening:
            fresh = FRESH_QUEUED_S if state.status == "queued" else FRESH_S
            self._seen[job_id] = Seen(job, state, now + fresh)
            self._seen.move_to_end(job_id)
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return found if tenant is None or job.tenant == tenant else None

    async def _listen(self) -> None:
        while True:
            try:
                async with self._link.waiting.pubsub() as channel:
                    await channel.subscribe(KEYS["changed"])
                    async for message in channel.listen():
                        # The first message confirms the subscription: changes from here on are told.
                        self._listening = True
                        if message["type"] == "message":
                            self._forget(message["data"])
            except AWAY:
                pass
            finally:
                self._listening = False
                self._seen.clear()
                self._reading.clear()
            await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self._link.close()
