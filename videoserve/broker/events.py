"""What happened to a job, in order, for those who follow it; and the bell that tells workers of new work."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

from videoserve.broker.calls import Calls, Policy
from videoserve.broker.keys import KEYS
from videoserve.broker.link import SHORT_S, Link
from videoserve.broker.patience import until_stored
from videoserve.types import Event

# How long a reader waits before it looks whether the job is still there.
LOOK_S = 2.0


class EventCalls(Calls):
    def __init__(self, link: Link, policy: Policy):
        super().__init__(link, policy)
        self._heard: dict[str, str] = {}

    async def events(self, job_id: str, after_seq: int = 0) -> AsyncIterator[Event]:
        """The job's events with a number above `after_seq`, old and coming, each once; ends after done or failed.

        Of the previews only the latest is kept: a reader that comes later does not see the ones before it.
        """
        seq = after_seq
        while await self._more_to_come(job_id, seq):
            for entry_id, fields in await self._news(KEYS["events"] + job_id, f"{seq}-0", LOOK_S):
                event = _event(job_id, entry_id, fields)
                seq = event.seq
                yield event
                if event.kind in ("done", "failed"):
                    return

    async def follow(self, job_id: str) -> AsyncIterator[list[tuple[int, Event]]]:
        """All events of a job as they come, those that came together at once, each with the fence of the lease under
        which it was told, 0 for its end; ends after done or failed, or when the job is gone.

        One call for each batch, which makes it the one for events as frequent as tokens. Waits for a store that is
        away for however long that is.
        """
        seq = 0
        while True:
            news = await until_stored(partial(self._news, KEYS["events"] + job_id, f"{seq}-0", LOOK_S))
            if not news and not await until_stored(partial(self._more_to_come, job_id, seq)):
                return
            batch = [(int(fields["fence"]), _event(job_id, entry_id, fields)) for entry_id, fields in news]
            if batch:
                seq = batch[-1][1].seq
                yield batch
                if batch[-1][1].kind in ("done", "failed"):
                    return

    async def _more_to_come(self, job_id: str, seq: int) -> bool:
        short = self._link.short

        async def read() -> tuple[str | None, Any]:
            async with short.pipeline(transaction=True) as pipe:
                pipe.hget(KEYS["job"] + job_id, "status")
                pipe.xrevrange(KEYS["events"] + job_id, count=1)
                status, latest = await pipe.execute()
                return status, latest

        status, latest = await self._link.patiently(read)
        # A deleted job's stream outlives it by a minute, so that its followers see the end.
        return status in ("queued", "in_progress") or (bool(latest) and int(latest[0][0].partition("-")[0]) > seq)

    async def wait_for_work(self, kind: str, timeout: float) -> None:
        """Returns when a job may have become claimable since the last time this returned, or after `timeout` s."""
        after = self._heard.get(kind, "0-0")
        for entry_id, _ in await self._news(KEYS["wake"] + kind, after, timeout):
            self._heard[kind] = entry_id

    async def _news(self, stream: str, after: str, timeout: float) -> list[tuple[str, dict[str, str]]]:
        async def read() -> Any:
            return await self._link.waiting.xread({stream: after}, block=max(1, round(1000 * timeout)))

        reply = await self._link.patiently(read, within_s=timeout + SHORT_S)
        return cast(list[tuple[str, dict[str, str]]], reply[0][1]) if reply else []


def _event(job_id: str, entry_id: str, fields: dict[str, str]) -> Event:
    seq = int(entry_id.partition("-")[0])
    return Event.from_dict({"job_id": job_id, "kind": fields["kind"], "data": json.loads(fields["data"]), "seq": seq})
