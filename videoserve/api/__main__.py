"""One API process: `python -m videoserve.api`, settings from the environment.

--fd N serves on a listening socket that the parent process opened and may share among several of these; without it
the process listens on its own host and port.
"""

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
import uvloop

from videoserve.api.app import create_app
from videoserve.api.poll_protocol import PollProtocol
from videoserve.broker import Broker
from videoserve.config import EXIT_REFUSED, Settings, load_settings
from videoserve.logs import start_logs
from videoserve.storage.open_cache import open_cache
from videoserve.storage.open_files import open_files

log = logging.getLogger("videoserve.api")

# For requests that are being answered when the process is told to end.
GRACE_S = 1


async def serve(settings: Settings, listener: socket.socket | None) -> None:
    """Serves until SIGTERM or SIGINT. Raises ValueError, a sentence, for settings that cannot be used."""
    if settings.redis_url is None:
        raise ValueError("An API process needs its server's Redis: set VIDEOSERVE_REDIS_URL.")
    cache = open_cache(settings, serves=True)
    broker = Broker.from_settings(settings)
    try:
        app = create_app(settings, broker, open_files(settings), cache)
        server = _Server(_config(app, settings))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, server.handle_exit, number, None)
        await server.serve(None if listener is None else [listener])
    finally:
        await broker.close()
        if cache is not None:
            cache.close()


class _Server(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them once more at its end, before the broker is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(app: object, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        host=settings.host,
        port=settings.port,
        loop="none",
        http=PollProtocol,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        # Well beyond the longest pause that clients are told to make between polls.
        timeout_keep_alive=75,
    )


def main() -> int:
    """The exit code: 0 after a signal, 2 when the settings cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m videoserve.api", description="One API process.")
    parser.add_argument("--fd", type=int, help="a listening socket inherited from the parent process")
    arguments = parser.parse_args()
    try:
        settings, _ = load_settings({})
    except ValueError as error:
        # Without settings there is no log yet.
        print(error, file=sys.stderr)
        return EXIT_REFUSED
    start_logs(settings.log_level, "api")
    listener = None if arguments.fd is None else socket.socket(fileno=arguments.fd)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, listener))
    except ValueError as error:
        log.error(str(error))
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
