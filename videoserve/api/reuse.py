"""Jobs that no worker has to compute: their video was made before, or is being made for one that asks the same."""

import asyncio
import logging
from dataclasses import dataclass, field

from videoserve.api.service import Service
from videoserve.broker import Done
from videoserve.errors import ServeError
from videoserve.planning.identity import Maker, identify, repeatable, twin_of
from videoserve.planning.reuse import hit, of_plan, passed_on
from videoserve.storage.files import FileStore
from videoserve.storage.finished import Finished, UnusableResultError
from videoserve.types import Job
from videoserve_cache.tiers import Hit, Key, SharedCache

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Known:
    """By job id: what it is completed with, or else what it has in common with others."""

    done: dict[str, Done] = field(default_factory=dict)
    twins: dict[str, str] = field(default_factory=dict)


async def known_of(service: Service, jobs: list[Job], hold: str) -> Known:
    """What is known of these jobs. Results are in the file store then, held until there is a job that names them."""
    known = Known()
    if service.cache is None:
        return known
    for job in jobs:
        if not repeatable(job.request) or not job.plan["cache"].get("reuse", True):
            continue
        found = await asyncio.to_thread(look_up, service.cache, job, await service.makers())
        done = None if found is None else await stored(service, job, *found, hold)
        if done is not None:
            known.done[job.id] = done
        elif (twin := twin_of(job.plan, job.tenant, strict=bool(job.request.get("strict")))) is not None:
            known.twins[job.id] = twin
    return known


def look_up(cache: SharedCache, job: Job, makers: tuple[Maker, ...]) -> tuple[Hit, Finished] | None:
    """The video that one of the ready workers would make of this job, where it was made before."""
    for maker in makers:
        digest = identify("result", job.plan, maker, job.tenant)
        if digest is None:
            return None
        found = cache.get(Key(kind="result", digest=digest, tenant=job.tenant, model=job.plan["model"]))
        if found is None:
            continue
        try:
            return found, Finished.unpack(found.content)
        except UnusableResultError as error:
            found.close()
            log.warning("an entry of the cache is not one", extra={"reason": str(error)})
    return None


async def stored(service: Service, job: Job, found: Hit, finished: Finished, hold: str) -> Done | None:
    """None where the file store does not take it now: a worker that has the job may find it better."""
    with found:
        for sha256 in finished.files:
            await service.broker.hold(sha256, hold)
        try:
            await asyncio.to_thread(put_all, service.files, finished)
        except ServeError as error:
            log.warning("a video that was made before cannot be stored", extra={"reason": error.message})
            return None
    entry = hit("result", cls=found.cls, tier=found.tier, age_s=found.age_s, size=found.size, saved_s=found.cost_s)
    receipt = passed_on(of_plan(finished.receipt, job.plan, finished.adjustments), job.id, entry)
    return Done(outputs=finished.outputs, receipt=receipt, adjustments=finished.adjustments)


def put_all(files: FileStore, finished: Finished) -> None:
    for content in finished.files.values():
        files.put(bytes(content))
