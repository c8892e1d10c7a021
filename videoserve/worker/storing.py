"""Whether what jobs make can be kept: a file store that is away, or full, is no fault of theirs."""

import asyncio
import logging
from typing import Final

from videoserve.errors import ServeError
from videoserve.storage.files import FAILING, FileStore
from videoserve.types import Event

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


def blames_store(event: Event) -> bool:
    """Whether a job failed because its files could not be read or stored, as it seems."""
    return event.kind == "failed" and event.data["code"] in FAILING


async def can_store(files: FileStore) -> bool:
    try:
        await asyncio.to_thread(files.check)
    except (ServeError, OSError) as error:
        log.warning("the file store fails", extra={"reason": str(error)})
        return False
    return True


async def until_storing(files: FileStore) -> None:
    """Waits for a file store that fails, with growing pauses."""
    pause = FIRST_PAUSE_S
    while not await can_store(files):
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
