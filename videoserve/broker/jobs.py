"""What the API asks of jobs: submit, read, list, cancel, delete."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS
from videoserve.broker.state import FIELDS, Done, JobState, Turn, read_job
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
        twins: Mapping[str, str] | None = None,
        done: Mapping[str, Done] | None = None,
    ) -> list[Job]:
        """Writes and queues the jobs of one client and one kind, all or none, and returns them once they are safe.

        Those in `done`, by id, are completed with it at once. `twins` says what a job asks for, by id: of those that
        ask for the same one is computed, and the others get what becomes of it.
        `idempotency` is (key, sha256 of the body): the same pair again returns the earlier jobs. Calling again with
        the same job ids is harmless. `key_concurrency` is how many jobs of this client may run at once, 0 for any.
        `hold` is what their pictures and adapters, and the outputs of those that are done, were held by until now.
        Raises QueueFull, DeadlineUnreachable for jobs whose measured work, after what is ahead of them, ends too late,
        Conflict "idempotency_conflict" for another body or when the earlier jobs are deleted.
        """
        tenant = jobs[0].tenant
        key, body = idempotency or (None, None)
        answer = await self._link.transition(
            "submit",
            jobs=[
                self._entry(job, key_concurrency, (twins or {}).get(job.id), (done or {}).get(job.id)) for job in jobs
            ],
            queue_limit=queue_limit,
            key_queue_limit=key_queue_limit,
            retention=self._policy.retention_s,
            idem=None if key is None else _scoped(tenant, key),
            body=body,
            hold=hold,
        )
        match answer.get("error"):
            case "other_body":
                raise _other_body(key)
            case "full" | "key_full" as scope:
                raise _queue_full(answer, scope, queue_limit if scope == "full" else key_queue_limit)
            case "late":
                late = next(job for job in jobs if job.id == answer["id"])
                assert late.deadline is not None
                assert late.work_s is not None
                raise DeadlineUnreachable(late.deadline - late.created_at, late.work_s, answer["wait"])
        if answer["ids"] == [job.id for job in jobs]:
            return list(jobs)
        return await self._left_of(answer["ids"], key)

    async def earlier(self, tenant: str, idempotency: tuple[str, str]) -> list[Job] | None:
        """What `submit` with this idempotency key has answered; None when nothing was submitted with it.

        Raises Conflict as `submit` does.
        """
        key, body = idempotency
        told = await self._link.patiently(lambda: self._link.short.get(KEYS["idem"] + _scoped(tenant, key)))
        if told is None:
            return None
        known = json.loads(told)
        if known["body"] != body:
            raise _other_body(key)
        return await self._left_of(known["ids"], key)

    async def _left_of(self, job_ids: Sequence[str], key: str | None) -> list[Job]:
        left = [found[0] for found in await self.get_many(job_ids) if found]
        if not left:
            raise Conflict(
                f"The Idempotency-Key {key!r} belongs to a video that has been deleted; take a new key.",
                code="idempotency_conflict",
            )
        return left

    def _entry(self, job: Job, key_concurrency: int, twin: str | None, done: Done | None) -> dict[str, Any]:
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
            "adapters": sorted({use["digest"] for use in job.plan.get("loras", ())}),
        }
        if "asker" in job.request:
            entry["asker"] = job.request["asker"]
        if job.deadline is not None:
            entry["deadline"] = job.deadline
        if job.work_s is not None:
            entry["work"] = job.work_s
        if twin is not None:
            entry["twin"] = twin
        if done is not None:
            entry["result"] = done.told()
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


def _scoped(tenant: str, key: str) -> str:
    # The length keeps client "a:b" with key "c" apart from client "a" with key "b:c".
    return f"{len(tenant)}:{tenant}:{key}"


def _other_body(key: str | None) -> Conflict:
    return Conflict(
        f"The Idempotency-Key {key!r} was used with another request body; take a new key.",
        code="idempotency_conflict",
    )


def missing(job_id: str) -> NotFound:
    return NotFound(f"There is no video {job_id[:80]!r}.", param="video_id")


def _queue_full(answer: dict[str, Any], scope: str, limit: int) -> QueueFull:
    # One running job must end before a place is free; until one has, nothing is known.
    retry_after = max(1, math.ceil(float(answer["pace"])))
    whose = "jobs wait" if scope == "full" else "of your jobs wait or run"
    return QueueFull(f"{answer['waiting']} {whose}, the limit is {limit}; try again in {retry_after} s.", retry_after)
