"""Any sequence of calls, by any worker, dead or late: no job is lost, none is in two places, one token is valid."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from redis import Redis

from videoserve.broker import Broker, Done
from videoserve.errors import Conflict, FenceLost
from videoserve.types import Appetite, Event, Job, Output, rank

MAX_ATTEMPTS = 3
STATUSES = ("queued", "in_progress", "completed", "failed")
pick = st.integers(0, 1000)


@dataclass
class Expected:
    """What the store must say about a job."""

    job: Job
    status: str = "queued"
    fence: int = 0
    attempts: int = 0
    cancelling: bool = False
    expired: bool = False
    twin: str | None = None
    follows: str | None = None
    rank: float = 0.0
    output: str | None = None


class Machine(RuleBasedStateMachine):
    def __init__(self, url: str, make_job: Callable[..., Job]):
        super().__init__()
        self.make_job = make_job
        self.redis = Redis.from_url(url, decode_responses=True)
        self.redis.flushall()
        self.runner = asyncio.Runner()
        self.broker = Broker.connect(url, lease_s=1000.0, max_attempts=MAX_ATTEMPTS, aging_s=60.0, retention_s=1000.0)
        self.jobs: dict[str, Expected] = {}
        self.leases: list[tuple[str, int]] = []
        self.submitted = 0

    def teardown(self) -> None:
        self.runner.run(self.broker.close())
        self.runner.close()
        self.redis.close()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(call)

    def in_status(self, status: str) -> list[str]:
        return [job_id for job_id, known in self.jobs.items() if known.status == status]

    def reap(self) -> list[str]:
        """What a claim or the janitor must do first to leases that ran out. Returns the ids that wait again."""
        again = []
        for job_id in [job_id for job_id in self.in_status("in_progress") if self.jobs[job_id].expired]:
            self.end_attempt(self.jobs[job_id])
            if self.jobs[job_id].status == "queued":
                again.append(job_id)
        return again

    def end_attempt(self, known: Expected) -> None:
        gone = known.cancelling or known.attempts >= MAX_ATTEMPTS
        self.settle(known, "failed" if gone else "queued", spread=not known.cancelling)

    def settle(self, known: Expected, status: str, *, spread: bool) -> None:
        """A job leaves what it was in; where it ends, those that wait for its video end alike or go on without it."""
        known.status = status
        known.fence, known.cancelling, known.expired = 0, False, False
        if status == "queued":
            return
        followers = [other for other in self.jobs.values() if other.follows == known.job.id]
        known.twin = known.follows = None
        if spread:
            for other in followers:
                other.status, other.twin, other.follows, other.output = status, None, None, known.output
        elif followers:
            first, *rest = sorted(followers, key=lambda other: (other.rank, other.job.id))
            first.follows = None
            for other in rest:
                other.follows = first.job.id

    @rule(
        tenant=st.sampled_from(["t", "u"]),
        shape=st.sampled_from(["x", "y"]),
        created=st.integers(0, 500),
        first=st.integers(0, 5),
        twin=st.sampled_from([None, "a", "b"]),
    )
    def submit(self, tenant: str, shape: str, created: int, first: int, twin: str | None) -> None:
        self.submitted += 1
        job = self.make_job(
            f"{self.submitted}", tenant=tenant, created_at=float(created), priority=first, plan={"batch_key": shape}
        )
        twins = {} if twin is None else {job.id: f"{tenant}{twin}"}
        self.run(self.broker.submit([job], queue_limit=1000, key_queue_limit=1000, key_concurrency=2, twins=twins))
        known = Expected(job, twin=twins.get(job.id), rank=rank(job.created_at, job.priority, 60.0))
        alike = [other for other in self.jobs.values() if known.twin is not None and other.twin == known.twin]
        for computed in (other for other in alike if other.follows is None):
            known.follows = computed.job.id
            computed.rank = min(computed.rank, known.rank)
        self.jobs[job.id] = known

    @rule(tenant=st.sampled_from(["t", "u"]))
    def submit_what_is_done(self, tenant: str) -> None:
        self.submitted += 1
        job = self.make_job(f"{self.submitted}", tenant=tenant, plan={"batch_key": "x"})
        outputs = {"video": Output(sha256=job.id, bytes=1, media_type="video/mp4")}
        # No room is needed: it does not wait.
        self.run(
            self.broker.submit(
                [job], queue_limit=0, key_queue_limit=0, done={job.id: Done(outputs=outputs, receipt={})}
            )
        )
        self.jobs[job.id] = Expected(job, status="completed", output=job.id)

    @rule(shape=st.sampled_from([None, "x", "y"]), before=st.sampled_from([None, 100.0, 300.0]), idle=st.booleans())
    def claim(self, shape: str | None, before: float | None, idle: bool) -> None:
        expired = self.reap()
        waiting = [self.jobs[job_id] for job_id in self.in_status("queued") if self.jobs[job_id].follows is None]
        running = [self.jobs[job_id].job.tenant for job_id in self.in_status("in_progress")]

        def place(known: Expected) -> tuple[int, float, str]:
            job = known.job
            at = known.rank
            urgent = before is not None and at < before
            return (0 if job.id in expired else 1 if idle or urgent else 2, at, job.id)

        fits = [
            known
            for known in waiting
            if running.count(known.job.tenant) < 2
            and (idle or (before is not None and place(known)[1] < before) or known.job.plan["batch_key"] == shape)
        ]
        claim = self.run(self.broker.claim("video", "w", Appetite(idle=idle, batch_key=shape, before=before)))
        if not fits:
            assert claim is None
            return
        best = min(fits, key=place)
        assert claim is not None
        if place(best)[0] == 0:
            assert claim.job.id in expired
        else:
            assert claim.job == best.job
        known = self.jobs[claim.job.id]
        assert not self.leases or claim.fence > max(fence for _, fence in self.leases)
        known.status, known.fence, known.attempts = "in_progress", claim.fence, known.attempts + 1
        assert claim.attempt == known.attempts
        self.leases.append((claim.job.id, claim.fence))

    @precondition(lambda self: bool(self.leases))
    @rule(which=pick, deed=st.sampled_from(["renew", "record", "finish", "fail", "retry", "release"]))
    def a_worker_calls(self, which: int, deed: str) -> None:
        """A worker of now or of long ago."""
        job_id, fence = self.leases[-1 - which % len(self.leases)]
        known = self.jobs.get(job_id)
        calls = {
            "renew": lambda: self.broker.renew(job_id, fence),
            "record": lambda: self.broker.record(
                job_id, fence, [Event(job_id=job_id, kind="progress", data={"progress": 1})]
            ),
            "finish": lambda: self.broker.finish(
                job_id,
                fence,
                {"video": Output(sha256=job_id, bytes=1, media_type="video/mp4")},
                {"job": job_id},
                twin_receipt={"job": "<job>", "empty": [], "seed": 2**64 - 1},
            ),
            "fail": lambda: self.broker.fail(job_id, fence, "x", "No.", retry=False),
            "retry": lambda: self.broker.fail(job_id, fence, "x", "Again.", retry=True),
            "release": lambda: self.broker.release(job_id, fence),
        }
        if known is None or known.fence != fence:
            before = self.snapshot()
            try:
                self.run(calls[deed]())
                # Only the repetition of a lease's own end is not refused, and it must change nothing.
                assert deed in ("finish", "fail", "retry", "release")
            except FenceLost:
                pass
            assert self.snapshot() == before
            return
        self.run(calls[deed]())
        if deed in ("renew", "record"):
            known.expired = False
            return
        if deed == "retry":
            self.end_attempt(known)
            return
        ends = {"finish": "completed", "fail": "failed", "release": "queued"}
        known.attempts -= deed == "release" and not known.cancelling
        if deed == "finish" and not known.cancelling:
            known.output = job_id
        self.settle(known, "failed" if known.cancelling else ends[deed], spread=not known.cancelling)

    @precondition(lambda self: bool(self.in_status("in_progress")))
    @rule(which=pick)
    def a_lease_runs_out(self, which: int) -> None:
        running = self.in_status("in_progress")
        job_id = running[which % len(running)]
        self.redis.zadd("leases:video", {job_id: 1.0})
        self.jobs[job_id].expired = True

    @rule()
    def the_janitor_comes(self) -> None:
        self.run(self.broker.expire())
        self.reap()

    @precondition(lambda self: bool(self.jobs))
    @rule(which=pick)
    def cancel(self, which: int) -> None:
        known = list(self.jobs.values())[which % len(self.jobs)]
        try:
            self.run(self.broker.cancel(known.job.id))
        except Conflict:
            assert known.status in ("completed", "failed")
            return
        known.cancelling = known.status == "in_progress"
        if known.status == "queued":
            self.settle(known, "failed", spread=False)

    @precondition(lambda self: bool(self.jobs))
    @rule(which=pick)
    def delete(self, which: int) -> None:
        job_id = list(self.jobs)[which % len(self.jobs)]
        self.run(self.broker.delete(job_id))
        known = self.jobs.pop(job_id)
        self.settle(known, "failed", spread=False)

    def snapshot(self) -> dict[str, Any]:
        return {job_id: self.redis.hgetall(f"job:{job_id}") for job_id in self.jobs}

    @invariant()
    def every_job_is_where_its_status_says(self) -> None:
        expected: dict[str, Any] = {"stored": sorted(self.jobs)}
        pipe = self.redis.pipeline()
        pipe.keys("job:*")

        def members(key: str, ids: set[str], *, ordered: bool = True) -> None:
            pipe.zrange(key, 0, -1) if ordered else pipe.smembers(key)
            expected[key] = sorted(ids)

        ids = {status: set(self.in_status(status)) for status in STATUSES}
        first = {job_id for job_id, known in self.jobs.items() if known.follows is None}
        members("queue:video", ids["queued"] & first)
        members("leases:video", ids["in_progress"])
        members("following:video", set(self.jobs) - first, ordered=False)
        members("expiry", ids["completed"] | ids["failed"])
        for shape in ("x", "y"):
            alike = {job_id for job_id, known in self.jobs.items() if known.job.plan["batch_key"] == shape}
            members(f"shape:video:{shape}", ids["queued"] & alike & first)
        for tenant in ("t", "u"):
            own = {job_id for job_id, known in self.jobs.items() if known.job.tenant == tenant}
            for status in STATUSES:
                members(f"status:{status}:{tenant}", ids[status] & own)
            members(f"listed:{tenant}", own)
            members(f"running:{tenant}", ids["in_progress"] & own, ordered=False)
            members(f"active:{tenant}", (ids["in_progress"] | ids["queued"]) & own, ordered=False)
        for job_id, known in self.jobs.items():
            pipe.hmget(f"job:{job_id}", "status", "fence", "attempt")
            expected[job_id] = sorted([known.status, str(known.fence), str(known.attempts)])
            pipe.smembers(f"ref:{job_id}")
            expected[f"ref:{job_id}"] = sorted(other for other, its in self.jobs.items() if its.output == job_id)
            members(f"twins:{job_id}", {other for other, its in self.jobs.items() if its.follows == job_id})
            if known.output is not None:
                state = self.run(self.broker.get(job_id))[1]
                waited = {"job": job_id, "empty": [], "seed": 2**64 - 1}
                assert state.receipt in ({"job": job_id}, {}) if known.output == job_id else state.receipt == waited
        for twin in {known.twin for known in self.jobs.values()} - {None}:
            pipe.mget([f"twin:{twin}"])
            expected[f"twin:{twin}"] = [other for other in first if self.jobs[other].twin == twin]
        pipe.keys("twin:*")
        expected["twin"] = sorted(f"twin:{twin}" for twin in {its.twin for its in self.jobs.values()} - {None})
        found = pipe.execute()
        found[0] = [key.removeprefix("job:") for key in found[0]]
        assert dict(zip(expected, map(sorted, found), strict=True)) == expected


def test_any_sequence_of_calls_keeps_the_invariants(redis_url: str, make_job: Callable[..., Job]) -> None:
    run_state_machine_as_test(
        lambda: Machine(redis_url, make_job),  # type: ignore[arg-type]
        settings=settings(
            max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
