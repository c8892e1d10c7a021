"""What is done from time to time: expired leases and records, files that no job needs."""

import uuid
from collections.abc import Collection
from typing import Any, Final, cast

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS

KINDS: Final = ("video", "chat")


class JanitorCalls(Calls):
    async def reap(self) -> list[str]:
        """Ends attempts whose lease has run out and whose worker is gone; the ids of the jobs that are queued again.

        Cheap enough for every second: where every worker is busy, or none is there, no claim notices. A claim takes
        the job of a worker that lives as well, once its lease has run out.
        """
        answer = await self._link.transition(
            "reap",
            once=False,
            kinds=KINDS,
            max_attempts=self._policy.max_attempts,
            retention=self._policy.retention_s,
        )
        return [*answer["again"]]

    async def expire(self, *, limit: int = 100) -> list[tuple[str, list[str]]]:
        """Removes up to `limit` records whose time is over, and requeues or buries jobs whose lease ran out.

        Returns (job id, sha256 digests that no job needs any more); the caller deletes the files. Files that were
        held for a job that never came stand under the name of their hold. What is left over comes with the next call.
        """
        answer = await self._link.transition(
            "expire",
            limit=limit,
            kinds=KINDS,
            max_attempts=self._policy.max_attempts,
            retention=self._policy.retention_s,
        )
        return [(job_id, [*freed]) for job_id, freed in answer["removed"]]

    async def identity(self) -> str:
        """The name of this set of jobs, for whoever keeps its files: the same for as long as Redis keeps the jobs."""
        fresh = uuid.uuid4().hex

        async def read() -> Any:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.set(KEYS["identity"], fresh, nx=True)
                pipe.get(KEYS["identity"])
                return await pipe.execute()

        return cast(str, (await self._link.patiently(read))[1])

    async def references(self, sha256: str) -> bool:
        """Whether any job needs this file."""
        return bool(await self.referenced([sha256]))

    async def referenced(self, digests: Collection[str]) -> set[str]:
        """Those of the files that some job needs, in one round trip."""

        async def read() -> list[Any]:
            async with self._link.short.pipeline(transaction=False) as pipe:
                for digest in digests:
                    pipe.exists(KEYS["ref"] + digest)
                return await pipe.execute()

        found = await self._link.patiently(read)
        return {digest for digest, exists in zip(digests, found, strict=True) if exists}
