"""The reading for pollers: hundreds of them ask for the same unchanged jobs beside a model that needs the machine."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from videoserve.broker.calls import Policy
from videoserve.broker.jobs import JobCalls
from videoserve.broker.keys import KEYS
from videoserve.broker.link import AWAY, Link
from videoserve.broker.state import JobState, Turn
from videoserve.errors import ServeError
from videoserve.types import Job

log = logging.getLogger(__name__)

REMEMBERED: Final = 4096
# Without a sign of life from Redis for this long nothing is shown from memory: a dead network tells of no change.
ALIVE_S: Final = 5.0
# How often Redis is asked for a sign of life, and for the places of waiting jobs, which change without the job.
BEAT_S: Final = 1.0
RECONNECT_S: Final = 0.25
# Where listening fails for another reason than a lost connection, such as a right that is missing.
DEAF_S: Final = 10.0
# Waits shrink all the time. Within this share of one, the old one stays, and with it what was rendered of it.
WAIT_DRIFT: Final = 0.05


@dataclass(slots=True)
class Seen:
    """A reading; `asked` says whether anybody wanted it since the places were last renewed."""

    job: Job
    state: JobState
    asked: bool = True


Found = tuple[Job, JobState] | None


class GlanceCalls(JobCalls):
    def __init__(self, link: Link, policy: Policy):
        super().__init__(link, policy)
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._reading: dict[str, object] = {}
        self._wanted: dict[str, asyncio.Future[Found]] = {}
        self._fetching: asyncio.Task[None] | None = None
        self._listening = False
        self._heard_at = float("-inf")
        self._listener: asyncio.Task[None] | None = None

    async def glance(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState] | None:
        """What `get` answers, from memory for as long as Redis has told of no change.

        A change made anywhere shows within about a millisecond, a queue position within about two seconds.
        """
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())
        seen = self._remembered(job_id)
        return _shown(seen, tenant) if seen else await self._look(job_id, tenant)

    def remembered(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState] | None:
        """What `glance` answers without asking Redis; None where it has to ask, and for another client's job."""
        seen = self._remembered(job_id)
        return _shown(seen, tenant) if seen else None

    def _remembered(self, job_id: str) -> Seen | None:
        seen = self._seen.get(job_id)
        if seen is None or self._heard_at + ALIVE_S < asyncio.get_running_loop().time():
            return None
        seen.asked = True
        return seen

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

    async def _look(self, job_id: str, tenant: str | None) -> tuple[Job, JobState] | None:
        # A change told while this reading was under way takes the mark away: the reading may be the older one.
        mark = self._reading[job_id] = object()
        try:
            found = await self._fetch(job_id)
        finally:
            current = self._reading.get(job_id) is mark
            if current:
                del self._reading[job_id]
        if found is None:
            return None
        job, state = found
        if current and self._listening:
            self._seen[job_id] = Seen(job, state)
            self._seen.move_to_end(job_id)
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
        return found if tenant is None or job.tenant == tenant else None

    async def _fetch(self, job_id: str) -> Found:
        """Reads with the next batch, so that any number of pollers keep one connection busy and not a pool of them."""
        reading = self._wanted.setdefault(job_id, asyncio.get_running_loop().create_future())
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch_wanted())
        # Others may wait for the same reading.
        return await asyncio.shield(reading)

    async def _fetch_wanted(self) -> None:
        while self._wanted:
            batch, self._wanted = self._wanted, {}
            try:
                rows = await self.get_many(list(batch))
                readings = {job_id: Seen(*row) for job_id, row in zip(batch, rows, strict=True) if row}
                await self._renew_places(readings)
            except Exception as error:
                # Whatever it was: somebody waits for each of these.
                for reading in batch.values():
                    reading.set_exception(error)
                    # Whoever asked may have left.
                    reading.exception()
                continue
            for job_id, reading in batch.items():
                seen = readings.get(job_id)
                reading.set_result((seen.job, seen.state) if seen else None)

    async def _listen(self) -> None:
        while True:
            beating = None
            pause_s = RECONNECT_S
            try:
                async with self._link.waiting.pubsub() as channel:
                    await channel.subscribe(KEYS["changed"])
                    beating = asyncio.create_task(self._beat(channel))
                    async for message in channel.listen():
                        # The first message confirms the subscription: changes from here on are told.
                        self._listening = True
                        self._heard_at = asyncio.get_running_loop().time()
                        if message["type"] == "message":
                            self._forget(message["data"])
            except AWAY:
                pass
            except Exception:
                log.exception("changes of jobs are not heard, every poll asks Redis")
                pause_s = DEAF_S
            finally:
                if beating is not None:
                    beating.cancel()
                self._listening = False
                self._seen.clear()
                self._reading.clear()
            await asyncio.sleep(pause_s)

    async def _beat(self, channel: Any) -> None:
        """Ends with the first failure, which the listener, on the same connection, meets as well."""
        with suppress(*AWAY):
            while True:
                await asyncio.sleep(BEAT_S)
                await channel.ping()
                asked = {job_id: seen for job_id, seen in self._seen.items() if seen.asked}
                with suppress(ServeError):
                    await self._renew_places(asked)

    async def _renew_places(self, readings: Mapping[str, Seen]) -> None:
        waiting = {job_id: seen for job_id, seen in readings.items() if seen.state.status == "queued"}
        for kind in {seen.job.kind for seen in waiting.values()}:
            ids = [job_id for job_id, seen in waiting.items() if seen.job.kind == kind]
            for job_id, turn in zip(ids, await self.turns(kind, ids), strict=True):
                seen = waiting[job_id]
                seen.asked = False
                # A job that waits no longer is told as a change.
                if turn is not None and _moved(seen.state, turn):
                    seen.state = replace(seen.state, queue_position=turn.place, wait_s=turn.wait_s)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.gather(self._fetching, return_exceptions=True)
        await self._link.close()


def _shown(seen: Seen, tenant: str | None) -> Found:
    return (seen.job, seen.state) if tenant is None or seen.job.tenant == tenant else None


def _moved(state: JobState, turn: Turn) -> bool:
    """Whether a waiting job's turn is other than its state says."""
    if turn.place != state.queue_position or turn.wait_s is None or state.wait_s is None:
        return (turn.place, turn.wait_s) != (state.queue_position, state.wait_s)
    return abs(turn.wait_s - state.wait_s) > WAIT_DRIFT * state.wait_s
