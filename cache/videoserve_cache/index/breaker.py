"""Whether Redis is asked at all: once it did not answer, nobody waits for it again until it does."""

import threading


class Breaker:
    """Starts closed (Redis is asked). Thread-safe."""

    def __init__(self) -> None:
        self._open = threading.Event()
        # Wakes whoever looks for Redis while it is away.
        self.news = threading.Event()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def trip(self) -> bool:
        """True for the first who found Redis away."""
        first = not self._open.is_set()
        self._open.set()
        self.news.set()
        return first

    def close(self) -> None:
        self._open.clear()
