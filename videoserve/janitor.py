"""What nobody wants any more: finished jobs past their retention, and blobs that no job names."""

import asyncio
import logging
import time

from videoserve.broker.broker import Broker
from videoserve.errors import ServeError
from videoserve.storage.files import FileStore

log = logging.getLogger(__name__)

LEASES_EVERY_S = 1.0
EXPIRE_EVERY_S = 30.0
SWEEP_EVERY_S = 3600.0
# A blob is stored before the job that names it is submitted: one that was put this recently is left alone.
EXPIRE_AGE_S = 60.0
SWEEP_AGE_S = 3600.0


class ForeignFiles(ValueError):
    """The files are those of jobs in another Redis: each janitor would take what the other's jobs need."""


async def own_files(broker: Broker, files: FileStore) -> None:
    """Makes the files those of this Redis, when they were nobody's until now. Raises ForeignFiles, a sentence."""
    identity = await broker.identity()
    if await asyncio.to_thread(files.claim, identity) != identity:
        raise ForeignFiles(
            f"The files beside {files.owner_place} belong to the jobs of another Redis, and each of the two would take "
            f"what the other's jobs need: give this server its own --data folder or bucket. If the other Redis is gone "
            f"for good, remove {files.owner_place}."
        )


async def keep_clean(broker: Broker, files: FileStore) -> None:
    """Runs for as long as its process does. Any number of them may do this at once: every deed is idempotent.

    Raises ForeignFiles before it has touched any.
    """
    owned = False
    rounds = 0
    while True:
        try:
            if not owned:
                await own_files(broker, files)
                owned = True
            await expire(broker, files)
            if rounds % round(SWEEP_EVERY_S / EXPIRE_EVERY_S) == 0:
                await sweep(broker, files)
        except (ServeError, OSError) as error:
            # A disk or a store that is in trouble now; what else its process does goes on.
            log.warning("the janitor could not work", extra={"reason": str(error)})
        rounds += 1
        await asyncio.sleep(EXPIRE_EVERY_S)


async def watch_leases(broker: Broker, lease_s: float) -> None:
    """Runs for as long as its process does: a job whose worker is gone waits for no other worker to notice.

    After a time without the store, the workers that live get the time of a lease to renew theirs.
    """
    while True:
        pause_s = LEASES_EVERY_S
        try:
            for job_id in await broker.reap():
                log.warning("a worker stopped renewing its lease, the job is queued again", extra={"job": job_id})
        except ServeError as error:
            log.debug("leases cannot be seen", extra={"reason": error.message})
            pause_s = lease_s
        await asyncio.sleep(pause_s)


async def expire(broker: Broker, files: FileStore) -> None:
    put_before = time.time() - EXPIRE_AGE_S
    for job_id, digests in await broker.expire():
        for digest in digests:
            await asyncio.to_thread(files.delete, digest, last_put_before=put_before)
        log.info("job expired", extra={"job": job_id, "blobs": len(digests)})


async def sweep(broker: Broker, files: FileStore) -> None:
    """Deletes blobs without a job: of uploads that were never submitted, and of workers that lost their lease."""
    loop = asyncio.get_running_loop()

    def referenced(digest: str) -> bool:
        return asyncio.run_coroutine_threadsafe(broker.references(digest), loop).result()

    deleted = await asyncio.to_thread(files.sweep, referenced, SWEEP_AGE_S)
    if deleted:
        log.info("blobs swept", extra={"blobs": deleted})
