"""What a worker asks: take a job, tell how it goes, end it. Every call carries the lease's fencing token."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS
from videoserve.broker.state import Claim, Done
from videoserve.types import Appetite, Event, Job, Output


def new_call() -> str:
    """A name for a call that may be made again when its answer does not come, however long that takes."""
    return uuid.uuid4().hex


class LeaseCalls(Calls):
    async def claim(self, kind: str, worker_id: str, appetite: Appetite) -> Claim | None:
        """Leases the first job that fits, for lease_s seconds; None when none does.

        Jobs whose lease ran out come first. Passed over: clients at their concurrency limit. Ended on the way: jobs
        past their deadline ("deadline_exceeded"), cancelled ones, and those out of attempts ("attempts_exhausted").
        """
        answer = await self._link.transition(
            "claim",
            kind=kind,
            worker=worker_id,
            lease=self._policy.lease_s,
            max_attempts=self._policy.max_attempts,
            retention=self._policy.retention_s,
            idle=appetite.idle,
            shape=appetite.batch_key,
            before=appetite.before,
        )
        if "job" not in answer:
            return None
        return Claim(
            job=Job.from_dict(json.loads(answer["job"])),
            fence=answer["fence"],
            attempt=answer["attempt"],
            checkpoint=json.loads(answer["checkpoint"]) if answer["checkpoint"] else None,
        )

    async def renew(self, job_id: str, fence: int) -> bool:
        """Gives the lease another lease_s seconds. True when the client asked for the job to stop. Raises FenceLost."""
        answer = await self._link.transition("renew", once=False, id=job_id, fence=fence, lease=self._policy.lease_s)
        return bool(answer["cancel"])

    async def cancelled(self, job_ids: Sequence[str]) -> list[str]:
        """Of these running jobs, those to stop: their clients cancelled or deleted them.

        One round trip of plain reads, cheap enough for every denoising step. Renews nothing.
        """

        async def read() -> list[Any]:
            async with self._link.short.pipeline(transaction=False) as pipe:
                for job_id in job_ids:
                    pipe.hmget(KEYS["job"] + job_id, "status", "cancel")
                return await pipe.execute()

        states = await self._link.patiently(read)
        return [job for job, (status, cancel) in zip(job_ids, states, strict=True) if status is None or cancel == "1"]

    async def record(self, job_id: str, fence: int, events: Sequence[Event], *, call: str | None = None) -> list[str]:
        """Appends events to the job's stream, takes over the state they tell, and renews the lease. Raises FenceLost.

        The stream gives each event its number, whatever `seq` it carries; checkpoint events stay out of it. An older
        preview leaves the stream when a new one comes. Calling again with the same `call`, a unique name, appends
        nothing, if nothing else was told of the job since. Returns digests to delete: the checkpoint that was replaced.
        """
        told: dict[str, Any] = {}
        sentences: list[str] = []
        checkpoint: dict[str, Any] | None = None
        for event in events:
            match event.kind:
                case "stage":
                    told["stage"] = event.data["stage"]
                case "progress":
                    told["progress"] = event.data["progress"]
                    told["eta_s"] = event.data.get("eta_s")
                case "adjusted":
                    sentences.append(event.data["sentence"])
                case "checkpoint":
                    checkpoint = event.data
                case "done" | "failed":
                    raise ValueError(f"A {event.kind} event ends a job: call finish or fail instead of record.")
        answer = await self._link.transition(
            "record",
            call=call or new_call(),
            id=job_id,
            fence=fence,
            lease=self._policy.lease_s,
            events=[{"kind": e.kind, "data": json.dumps(e.data)} for e in events if e.kind != "checkpoint"],
            set={field: str(value) for field, value in told.items() if value is not None},
            sentences=sentences,
            checkpoint=json.dumps(checkpoint) if checkpoint else None,
            checkpoint_sha=checkpoint["sha256"] if checkpoint else None,
        )
        return [*answer["freed"]]

    async def tell(self, told: Sequence[tuple[str, int, Sequence[Event]]], *, call: str | None = None) -> set[str]:
        """Appends events of many jobs, each (id, fence, events), to their streams in one call; the ids of those whose
        lease has passed on.

        For events that bring no state with them, such as tokens. Renews no lease. `call` as in `record`.
        """
        answer = await self._link.transition(
            "tell",
            call=call or new_call(),
            told=[
                {"id": job, "fence": fence, "events": [{"kind": e.kind, "data": json.dumps(e.data)} for e in events]}
                for job, fence, events in told
            ],
        )
        return {*answer["lost"]}

    async def finish(
        self,
        job_id: str,
        fence: int,
        outputs: Mapping[str, Output],
        receipt: dict[str, Any],
        *,
        hold: str | None = None,
        twin_receipt: dict[str, Any] | None = None,
    ) -> list[str]:
        """Completes the job. Calling again with the same fence is harmless. Raises FenceLost.

        `hold` is what the outputs were held by until now. Jobs that ask for the same video are completed with it, with
        `twin_receipt` for theirs and their id where that says ANY_JOB; without one the next of them is computed.
        A job that was cancelled meanwhile becomes failed/cancelled all the same. Returns digests to delete: the
        checkpoint, and in that case the outputs.
        """
        done = Done(outputs=outputs, receipt=receipt)
        twin = None if twin_receipt is None else Done(outputs=outputs, receipt=twin_receipt).told()
        answer = await self._link.transition(
            "finish",
            id=job_id,
            fence=fence,
            retention=self._policy.retention_s,
            **done.told(),
            hold=hold,
            twin=None if twin is None else {"receipt": twin["receipt"], "done": twin["done"]},
        )
        return [*answer["freed"]]

    async def fail(self, job_id: str, fence: int, code: str, message: str, retry: bool) -> list[str]:
        """Ends the attempt: with `retry` the job is queued again until max_attempts, else it has failed for good.

        Calling again with the same fence is harmless. A job asked to stop becomes failed/cancelled whatever `code`
        says. Returns digests to delete. Raises FenceLost.
        """
        answer = await self._link.transition(
            "fail",
            id=job_id,
            fence=fence,
            retention=self._policy.retention_s,
            max_attempts=self._policy.max_attempts,
            code=code,
            message=message,
            retry=retry,
        )
        return [*answer["freed"]]

    async def release(self, job_id: str, fence: int) -> list[str]:
        """Gives the job back unharmed: queued again with its checkpoint, this attempt not counted. Raises FenceLost."""
        answer = await self._link.transition("release", id=job_id, fence=fence, retention=self._policy.retention_s)
        return [*answer["freed"]]
