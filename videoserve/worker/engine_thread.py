"""The one thread that an engine lives in. An engine is not thread-safe: whatever is asked of it happens there."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from videoserve.types import Engine, Event
from videoserve_kernels.comm.exchange import CommunicationError

T = TypeVar("T")


class EngineThread:
    """Steps an engine for as long as it has work, and does what it is asked between two steps.

    `on_event` gets the engine's events on the event loop, in order, and all those of a step before the answer to any
    `call` made during it. Tokens that are emitted one after the other come at one moment.
    `failed` ends with the exception that escaped from the engine: the thread is gone then.
    `parted` ends with the CommunicationError of an engine of several ranks that lost one: it makes no step any more,
    and is still asked.
    """

    def __init__(self, engine: Engine, on_event: Callable[[Event], None]):
        self._engine = engine
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.parted: asyncio.Future[None] = self._loop.create_future()
        # Nobody may be waiting for them: a worker that drains is not.
        for end in (self.failed, self.parted):
            end.add_done_callback(lambda ended: ended.exception())
        self._alone = False
        self._tokens: list[Event] = []
        self._boundary = asyncio.Event()

    def start(self) -> None:
        self._thread.start()

    async def call(self, do: Callable[[Any], T]) -> T:
        """The result of `do(engine)`, run in the engine's thread at the next step boundary.

        Raises what `do` raised, or what broke the engine.
        """
        answer: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                result = do(self._engine)
            except Exception as error:
                self._tell(_settle, answer, None, error)
            else:
                self._tell(_settle, answer, result, None)

        self._inbox.put(work)
        both: set[asyncio.Future[Any]] = {answer, self.failed}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            self.failed.result()
        return answer.result()

    async def boundary(self, timeout_s: float) -> None:
        """Waits until the engine has ended a step since the last call of this, for at most `timeout_s`.

        Since then, and not from now on: an engine that ended its last step just before has none to wait for.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._boundary.wait(), timeout_s)
        self._boundary.clear()

    def part(self, error: CommunicationError) -> None:
        """A rank is gone, says somebody else: no step begins after the one that the engine may be in."""
        self._alone = True
        _settle(self.parted, None, error)

    async def stop(self, timeout_s: float) -> bool:
        """Closes the engine at the next step boundary; False when that has not come within `timeout_s`."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        busy = False
        try:
            while self._do_orders(wait=not busy):
                busy = not self._alone and self._step()
                self._hand_over_tokens()
                self._tell(self._boundary.set)
            self._engine.close()
        except BaseException as error:
            self._tell(_settle, self.failed, None, error)

    def _step(self) -> bool:
        try:
            return self._engine.step(self._emit)
        except CommunicationError as error:
            self._alone = True
            self._tell(_settle, self.parted, None, error)
            return False

    def _do_orders(self, wait: bool) -> bool:
        """Does what has been asked since the last step (`wait`: at least one order); False when that was to stop."""
        while True:
            try:
                order = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()
            wait = False

    def _emit(self, event: Event) -> None:
        if event.kind == "tokens":
            self._tokens.append(event)
            return
        self._hand_over_tokens()
        self._tell(self._on_event, event)

    def _hand_over_tokens(self) -> None:
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            self._tell(self._on_all, tokens)

    def _on_all(self, events: list[Event]) -> None:
        for event in events:
            self._on_event(event)

    def _tell(self, callback: Callable[..., object], *args: object) -> None:
        # The loop is closed when a draining worker has stopped waiting for a long step: nobody listens any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
