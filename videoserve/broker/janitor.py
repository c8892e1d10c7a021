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

    async def strays(self, kind: str) -> list[str]:
        """Ids of jobs that wait or run for an API process which shows no sign of life now."""
        answer = await self._link.transition("strays", once=False, kind=kind)
        return [*answer["strays"]]

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
        return await self._settled("identity", uuid.uuid4().hex)

    async def files_mark(self) -> str | None:
        """What stands in the file store that has the files of these jobs; None while there is none."""
        return cast(str | None, await self._link.patiently(lambda: self._link.short.get(KEYS["files"])))

    async def mark_files(self, mark: str) -> str:
        """The file store of these jobs is the one with that mark, when there was none until now; its mark."""
        return await self._settled("files", mark)

    async def _settled(self, name: str, value: str) -> str:
        """What was said first, now or earlier."""

        async def read() -> Any:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.set(KEYS[name], value, nx=True)
                pipe.get(KEYS[name])
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
