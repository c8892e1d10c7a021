"""The private Redis of a server: started, watched, and started again when it dies."""

import asyncio
import logging
from pathlib import Path

from videoserve.broker.server import EmbeddedRedis

log = logging.getLogger(__name__)

WATCH_S = 0.05
URL_FILE = "redis.url"


class RedisKeeper:
    """Redis in a data folder. Its URL stands in the folder's file redis.url while it runs, for other commands."""

    def __init__(self, data: Path):
        self._server = EmbeddedRedis(data)
        self._url_file = data / URL_FILE

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """Returns when it answers. Raises RuntimeError, a sentence."""
        self._server.start()
        self._url_file.write_text(self.url)
        log.info("redis started", extra={"url": self.url, "child_pid": self._pid()})

    async def keep(self) -> None:
        """Starts it again whenever it has ended; raises RuntimeError, a sentence, when that fails."""
        while True:
            await asyncio.sleep(WATCH_S)
            process = self._server.process
            code = None if process is None else process.poll()
            if code is not None:
                log.error("redis ended, starting it again", extra={"code": code})
                # Everything waits for it anyway, and a child must be made in the main thread (see lifeline.py).
                self.start()

    def stop(self, grace_s: float = 10.0) -> None:
        self._server.stop(grace_s)
        self._url_file.unlink(missing_ok=True)

    def _pid(self) -> int | None:
        return self._server.process.pid if self._server.process else None


def running_url(data: Path) -> str:
    """Where the Redis of the server on this data folder listens. Raises ValueError when it has none of its own."""
    try:
        return (data / URL_FILE).read_text()
    except FileNotFoundError:
        raise ValueError(
            f"The server on {data} keeps its jobs in a Redis elsewhere, or is just starting; say --redis-url."
        ) from None
