"""What nobody wants any more: finished jobs past their retention, and blobs that no job names."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from videoserve.broker.broker import Broker
from videoserve.errors import Conflict, NotFound, ServeError
from videoserve.storage.files import FileStore
from videoserve_lora.store import AdapterStore

log = logging.getLogger(__name__)

LEASES_EVERY_S = 1.0
# Longer than a process that lives is silent.
ASKERS_EVERY_S = 5.0
EXPIRE_EVERY_S = 30.0
SWEEP_EVERY_S = 3600.0
# A blob is stored before the job that names it is submitted: one that was put this recently is left alone.
EXPIRE_AGE_S = 60.0
SWEEP_AGE_S = 3600.0


class ForeignFiles(ValueError):
    """These are not the files of this Redis' jobs: those are elsewhere, or these belong to the jobs of another one."""


async def own_files(broker: Broker, files: FileStore) -> None:
    """Makes the files those of this Redis, when it had none and they were nobody's. Raises ForeignFiles, a sentence.

    The store is marked with the name of the Redis and one of its own, and the Redis with the same: the mark moves with
    a folder, whatever path it is mounted at. A store that is refused is left as it is.
    """
    identity, mark = await broker.identity(), await broker.files_mark()
    held = await asyncio.to_thread(files.owner)
    if held is None and mark is None:
        held = await asyncio.to_thread(files.claim, f"{identity} {uuid.uuid4().hex}")
    if held is not None and held.partition(" ")[0] != identity:
        raise ForeignFiles(
            f"The files beside {files.owner_place} belong to the jobs of another Redis, and each of the two would take "
            f"what the other's jobs need: give this server its own --data folder or bucket. If the other Redis is gone "
            f"for good, remove {files.owner_place}."
        )
    if held is None or await broker.mark_files(held) != held:
        raise ForeignFiles(
            f"The jobs of this Redis have their files elsewhere, not beside {files.owner_place}: give all servers and "
            f"workers of one Redis the same --data folder or the same --files bucket. If those files are gone for good "
            f"and these take their place, write {mark or await broker.files_mark()} into {files.owner_place}."
        )


async def keep_clean(broker: Broker, files: FileStore, adapters: AdapterStore | None = None) -> None:
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
                if adapters is not None:
                    await sweep_adapters(broker, adapters)
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


async def watch_askers(broker: Broker) -> None:
    """Runs for as long as its process does: a chat is not gone on with when the process is gone that was to tell it.

    Only one that is found twice is ended: after a time without the store, the processes that live have told so by then.
    """
    suspected: set[str] = set()
    while True:
        await asyncio.sleep(ASKERS_EVERY_S)
        try:
            found = set(await broker.strays("chat"))
            for job_id in found & suspected:
                log.warning("the process that asked for a chat is gone, the chat ends", extra={"job": job_id})
                with suppress(NotFound, Conflict):
                    await broker.cancel(job_id)
            suspected = found - suspected
        except ServeError as error:
            log.debug("chats cannot be seen", extra={"reason": error.message})
            suspected = set()


async def expire(broker: Broker, files: FileStore) -> None:
    put_before = time.time() - EXPIRE_AGE_S
    for job_id, digests in await broker.expire():
        for digest in digests:
            await asyncio.to_thread(files.delete, digest, last_put_before=put_before)
        log.info("job expired", extra={"job": job_id, "blobs": len(digests)})


async def sweep(broker: Broker, files: FileStore) -> None:
    """Deletes blobs without a job: of uploads that were never submitted, and of workers that lost their lease."""
    deleted = await asyncio.to_thread(files.sweep, _needed(broker), SWEEP_AGE_S)
    if deleted:
        log.info("blobs swept", extra={"blobs": deleted})


async def sweep_adapters(broker: Broker, adapters: AdapterStore, older_than_s: float = SWEEP_AGE_S) -> None:
    """Deletes adapters that have no name any more and that no job needs which waits or runs."""
    deleted = await asyncio.to_thread(adapters.sweep, _needed(broker), older_than_s=older_than_s)
    if deleted:
        log.info("adapters swept", extra={"adapters": deleted})


def _needed(broker: Broker) -> Callable[[str], bool]:
    """Asks, from a thread, whether any job needs a file."""
    loop = asyncio.get_running_loop()

    def needed(digest: str) -> bool:
        return asyncio.run_coroutine_threadsafe(broker.references(digest), loop).result()

    return needed
