"""What the API asks of jobs: submit, read, list, cancel, delete."""

import json
import math
from collections.abc import Sequence
from typing import Any

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS
from videoserve.broker.state import FIELDS, JobState, Turn, read_job
from videoserve.errors import Conflict, DeadlineUnreachable, NotFound, ServeError
from videoserve.types import Job, Status, rank


class QueueFull(ServeError):
    """No room for another job (429). `retry_after`: whole seconds until room is likely."""

    def __init__(self, message: str, retry_after: int):
        super().__init__(message, status=429, code="queue_full")
        self.retry_after = retry_after


class JobCalls(Calls):
    async def submit(
        self,
        jobs: Sequence[Job],
        *,
        idempotency: tuple[str, str] | None = None,
        queue_limit: int,
        key_queue_limit: int,
        key_concurrency: int = 0,
        hold: str | None = None,
    ) -> list[Job]:
        """Writes and queues the jobs of one client and one kind, all or none, and returns them once they are safe.

        `idempotency` is (key, sha256 of the body): the same pair again returns the earlier jobs. Calling again with
        the same job ids is harmless. `key_concurrency` is how many jobs of this client may run at once, 0 for any.
        `hold` is what their pictures were held by until now.
        Raises QueueFull, DeadlineUnreachable for jobs whose measured work, after what is ahead of them, ends too late,
        Conflict "idempotency_conflict" for another body or when the earlier jobs are deleted.
        """
        tenant = jobs[0].tenant
        key, body = idempotency or (None, None)
        answer = await self._link.transition(
            "submit",
            jobs=[self._entry(job, key_concurrency) for job in jobs],
            queue_limit=queue_limit,
            key_queue_limit=key_queue_limit,
            retention=self._policy.retention_s,
            # The length keeps client "a:b" with key "c" apart from client "a" with key "b:c".
            idem=None if key is None else f"{len(tenant)}:{tenant}:{key}",
            body=body,
            hold=hold,
        )
        match answer.get("error"):
            case "other_body":
                raise Conflict(
                    f"The Idempotency-Key {key!r} was used with another request body; take a new key.",
                    code="idempotency_conflict",
                )
            case "full" | "key_full" as scope:
                raise _queue_full(answer, scope, queue_limit if scope == "full" else key_queue_limit)
            case "late":
                late = jobs[answer["number"] - 1]
                assert late.deadline is not None
                assert late.work_s is not None
                raise DeadlineUnreachable(late.deadline - late.created_at, late.work_s, answer["wait"])
        if answer["ids"] == [job.id for job in jobs]:
            return list(jobs)
        earlier = [found[0] for found in await self.get_many(answer["ids"]) if found]
        if not earlier:
            raise Conflict(
                f"The Idempotency-Key {key!r} belongs to a video that has been deleted; take a new key.",
                code="idempotency_conflict",
            )
        return earlier

    def _entry(self, job: Job, key_concurrency: int) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "id": job.id,
            "job": json.dumps(job.to_dict()),
            "tenant": job.tenant,
            "kind": job.kind,
            "rank": rank(job.created_at, job.priority, self._policy.aging_s),
            "shape": job.plan.get("batch_key", ""),
            "limit": key_concurrency,
            "hook": "1" if job.webhook_url else "0",
            "inputs": sorted({sha for name in ("image", "last_image") if (sha := job.plan.get(name))}),
        }
        if job.deadline is not None:
            entry["deadline"] = job.deadline
        if job.work_s is not None:
            entry["work"] = job.work_s
        return entry

    async def get(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState] | None:
        """The job and its state; None when there is none of this id, or when another client than `tenant` owns it."""
        short = self._link.short
        values = await self._link.patiently(lambda: short.hmget(KEYS["job"] + job_id, FIELDS))
        if values[0] is None:
            return None
        job, state = read_job(values)
        if tenant is not None and job.tenant != tenant:
            return None
        if state.status == "queued":
            [turn] = await self.turns(job.kind, [job_id])
            if turn is None:
                # Claimed, or gone, since it was read.
                return await self.get(job_id, tenant)
            job, state = read_job(values, turn)
        return job, state

    async def turns(self, kind: str, job_ids: Sequence[str]) -> list[Turn | None]:
        """Where jobs of a kind wait, None for those that do not. One call, whose cost grows with the queue."""
        answer = await self._link.transition("places", once=False, kind=kind, ids=list(job_ids))
        return [Turn.read(told) for told in answer["places"]]

    async def get_many(self, job_ids: Sequence[str]) -> list[tuple[Job, JobState] | None]:
        """What `get` would answer for each, in one round trip and without queue positions."""

        async def read() -> list[Any]:
            async with self._link.short.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.hmget(KEYS["job"] + job_id, FIELDS)
                return await pipe.execute()

        rows = await self._link.patiently(read)
        return [read_job(values) if values[0] is not None else None for values in rows]

    async def cancel(self, job_id: str, tenant: str | None = None) -> tuple[Job, JobState]:
        """Fails a queued job with code "cancelled"; asks the worker of a running one to stop (state.cancelling).

        Cancelling again is answered the same way. Raises NotFound, and Conflict for a job that ended otherwise.
        """
        answer = await self._link.transition("cancel", id=job_id, tenant=tenant, retention=self._policy.retention_s)
        if answer.get("error") == "over":
            raise Conflict(f"The video {job_id!r} is {answer['status']}; only queued or running ones can be cancelled.")
        found = None if "error" in answer else await self.get(job_id, tenant)
        if found is None:
            raise missing(job_id)
        return found

    async def delete(self, job_id: str, tenant: str | None = None) -> list[str]:
        """Removes the job in whatever state; a worker that runs it loses its fence. Raises NotFound.

        Returns the sha256 digests of files that no job needs any more; the caller deletes them.
        """
        answer = await self._link.transition("delete", id=job_id, tenant=tenant)
        if "error" in answer:
            raise missing(job_id)
        # Lua writes an empty list as {}.
        return [*answer["freed"]]

    async def list(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int = 20,
        order: str = "desc",
        status: Status | None = None,
    ) -> tuple[list[tuple[Job, JobState]], bool]:
        """A page in order of submission ("asc" or "desc") and whether more follow. Raises NotFound for `after`."""
        answer = await self._link.transition(
            "list",
            once=False,
            tenant=tenant,
            after=after,
            limit=limit,
            descending=order == "desc",
            status=status,
            fields=FIELDS,
        )
        if "error" in answer:
            raise NotFound(f"There is no video {after!r} to list after.", param="after")
        rows = []
        for values, turn in answer["rows"]:
            # Lua has no null in arrays: a missing field comes as false.
            fields = [None if value is False else value for value in values]
            rows.append(read_job(fields, Turn.read(turn)))
        return rows, answer["more"]


def missing(job_id: str) -> NotFound:
    return NotFound(f"There is no video {job_id[:80]!r}.", param="video_id")


def _queue_full(answer: dict[str, Any], scope: str, limit: int) -> QueueFull:
    # One running job must end before a place is free; until one has, nothing is known.
    retry_after = max(1, math.ceil(float(answer["pace"])))
    whose = "jobs wait" if scope == "full" else "of your jobs wait or run"
    return QueueFull(f"{answer['waiting']} {whose}, the limit is {limit}; try again in {retry_after} s.", retry_after)
