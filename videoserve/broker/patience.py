"""Waiting for a store that is away longer than a single call waits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from videoserve.errors import ServeError

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


async def until_stored(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of `call`, asked again for as long as the store is away; every other error is raised."""
    warned = False
    while True:
        try:
            return await call()
        except ServeError as error:
            if error.code != "store_unavailable":
                raise
            if not warned:
                log.warning("the store does not answer; what is under way goes on and waits for it")
                warned = True
        await asyncio.sleep(RETRY_S)
