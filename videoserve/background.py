"""Loops and short jobs that run beside each other on the event loop, and the first exception among them."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks with one owner. `broken` ends with the first exception that one of them raised."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it: an owner that ends for another reason is not.
        self.broken.add_done_callback(lambda broken: broken.exception())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.broken.done():
            self.broken.set_exception(error)


async def first_of(stop: asyncio.Event, *futures: asyncio.Future[Any]) -> None:
    """Waits for `stop` or the first of `futures`, whichever comes first; raises what that future raised."""
    stopped = asyncio.ensure_future(stop.wait())
    try:
        done, _ = await asyncio.wait({stopped, *futures}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    for future in done:
        future.result()
