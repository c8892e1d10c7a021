"""The thread an engine lives in: when a step has ended, also one that nobody waited for yet."""

import asyncio
from typing import Any

import pytest

from videoserve.worker.engine_thread import EngineThread

pytestmark = pytest.mark.anyio
LONG_S = 60.0


class Once:
    """An engine of one step, which is made whenever it has been asked something."""

    def step(self, emit: Any) -> bool:
        return False

    def close(self) -> None:
        pass


async def test_a_step_that_ended_before_it_was_waited_for_is_no_step_to_wait_for() -> None:
    thread = EngineThread(Once(), lambda event: None)  # type: ignore[arg-type]
    thread.start()
    await thread.call(lambda engine: None)
    while not thread._boundary.is_set():
        await asyncio.sleep(0)
    # The engine is idle now, and no other step follows by itself.
    await asyncio.wait_for(thread.boundary(LONG_S), LONG_S / 4)
    waiting = asyncio.ensure_future(thread.boundary(LONG_S))
    await asyncio.sleep(0)
    assert not waiting.done()
    await thread.call(lambda engine: None)
    await asyncio.wait_for(waiting, LONG_S / 4)
    assert await thread.stop(LONG_S)
