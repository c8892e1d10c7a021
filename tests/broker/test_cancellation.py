"""A task that is cancelled ends, at whatever moment of a call that happens."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from videoserve.broker import Broker
from videoserve.types import Appetite

pytestmark = pytest.mark.anyio


async def test_cancelled_loops_end(broker: Broker) -> None:
    async def claim() -> None:
        while True:
            await broker.claim("video", "w", Appetite(idle=True))

    async def wait() -> None:
        while True:
            await broker.wait_for_work("video", 0.01)

    async def read() -> None:
        while True:
            await broker.get_many(["a", "b"])

    loops: tuple[Callable[[], Awaitable[None]], ...] = (claim, wait, read)
    moments = random.Random(1)
    for _ in range(60):
        tasks = [asyncio.ensure_future(loop()) for loop in loops]
        await asyncio.sleep(moments.uniform(0, 0.03))
        for task in tasks:
            task.cancel()
        _, alive = await asyncio.wait(tasks, timeout=5)
        for task in alive:
            task.cancel()
        assert not alive
