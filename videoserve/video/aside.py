"""What is done beside the work, because nobody who waits for a step should wait for a disk: in order, by one thread."""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

log = logging.getLogger(__name__)

# So many things may be in hand; what is put aside holds memory.
MOST = 8


class Aside:
    """For one caller's thread. The thread beside it starts with the first task."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aside")
        self._pending: deque[Future[None]] = deque()

    def do(self, task: Callable[[], None]) -> None:
        """Has it done after all before it. Waits while there is too much in hand."""
        while len(self._pending) >= MOST:
            self._pending.popleft().result()
        self._pending.append(self._thread.submit(told, task))

    def settle(self) -> None:
        """Waits until nothing is in hand."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Settles, and ends the thread."""
        self.settle()
        self._thread.shutdown()


def told(task: Callable[[], None]) -> None:
    """Nobody hears of a failure otherwise, and no other job is to fail by it."""
    try:
        task()
    except Exception:
        log.exception("what was put aside failed")
