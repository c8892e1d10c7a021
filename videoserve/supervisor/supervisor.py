"""`videoserve serve`: Redis, API processes and workers of one data folder, kept running until a signal ends them."""

import asyncio
import http.client
import logging
import os
import signal
import socket
import sys
import time
from urllib.parse import urlsplit

from videoserve.api.auth import check_bind
from videoserve.background import Background, first_of
from videoserve.broker.broker import Broker
from videoserve.config import Settings, to_env
from videoserve.janitor import own_files
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.chat_model import NoChat, chat_card
from videoserve.storage.open_adapters import open_adapters
from videoserve.storage.open_files import open_files
from videoserve.storage.shipped import ship
from videoserve.supervisor.folder import FolderLock
from videoserve.supervisor.listen import listen, url_of
from videoserve.supervisor.process import Process
from videoserve.supervisor.redis_keeper import RedisKeeper

log = logging.getLogger(__name__)

# Beyond the workers' own time to drain, until they are killed.
WORKER_GRACE_S = 0.5
# For requests that an API process is in the middle of; it gives them two seconds itself.
API_GRACE_S = 3.0
# Every write is on disk before its answer: a Redis that is killed after this loses nothing.
REDIS_GRACE_S = 1.0
READY_EVERY_S = 0.1
# A process that has to be started this often before the server was ever ready will not get well by itself.
STARTS_MAX = 5


class CannotServe(Exception):
    """Why the server does not start, as a sentence: the call or the settings must change."""


class GaveUp(Exception):
    """The server was never ready: one of its processes ends again and again."""


class Supervisor:
    """Owns the data folder, the listening socket and every child process of one server."""

    def __init__(self, settings: Settings):
        self._settings = settings
        # Servers with one Redis elsewhere share the folder of results as well; a private Redis shares nothing.
        self._lock = FolderLock(settings.data, shared=settings.redis_url is not None)
        self._redis = None if settings.redis_url else RedisKeeper(settings.data)
        self._socket: socket.socket | None = None
        self._workers: list[Process] = []
        self._apis: list[Process] = []
        self._background = Background()
        self._stop = asyncio.Event()
        self._shipped = asyncio.Event()

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT, then drains; a second signal kills the children at once.

        Raises an exception whose text is a sentence when the server cannot start (CannotServe, FolderInUse,
        CannotListen, ProcessRefused, RuntimeError of Redis, ValueError of the model) or never got ready (GaveUp).
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)
        self._model = resolve_model(self._settings.model)
        self._name = ModelCard.read(self._model).name
        self._chats = chats_of(self._settings)
        self._lock.take()
        try:
            await self._start()
            await first_of(self._stop, self._background.broken)
        finally:
            await self._end()
            self._lock.drop()

    async def _start(self) -> None:
        self._socket = listen(self._settings.host, self._settings.port)
        settings = self._settings
        if self._redis is not None:
            self._redis.start()
            self._background.spawn(self._redis.keep())
            settings = settings.model_copy(update={"redis_url": self._redis.url})
        await self._check_store(settings)
        one = settings.model_copy(update={"threads": threads_each(settings)})
        self._workers = [self._child(f"worker-{i}", one, "videoserve.worker", str(i)) for i in range(settings.workers)]
        self._workers += [
            self._child(f"chat-{i}", settings, "videoserve.worker", str(i), "chat") for i in range(self._chats)
        ]
        self._apis = [self._api(f"api-{i}", settings, self._socket.fileno()) for i in range(settings.api)]
        for process in (*self._apis, *self._workers):
            self._background.spawn(process.keep())
        self._background.spawn(self._ship())
        self._background.spawn(self._announce(url_of(self._socket)))

    def _child(self, name: str, settings: Settings, module: str, *arguments: str, fds: tuple[int, ...] = ()) -> Process:
        # -P: a file of the user's working directory must not stand in for a module of ours.
        argv = (sys.executable, "-P", "-m", module, *arguments)
        here = settings.model_copy(update={"data": settings.data.absolute()})
        return Process(name, argv, {**os.environ, **to_env(here)}, fds)

    def _api(self, name: str, settings: Settings, fd: int) -> Process:
        return self._child(name, settings, "videoserve.api", "--fd", str(fd), fds=(fd,))

    async def _check_store(self, settings: Settings) -> None:
        broker = Broker.from_settings(settings)
        try:
            await own_files(broker, open_files(self._settings))
            if self._redis is None:
                for weakness in await broker.weaknesses():
                    log.warning(weakness)
            reason = check_bind(settings, has_keys=bool(await broker.keys()))
        finally:
            await broker.close()
        if reason is not None:
            raise CannotServe(reason)

    async def _ship(self) -> None:
        """Beside the start of the processes, which takes longer."""
        await asyncio.to_thread(ship, open_adapters(self._settings, self._model, self._name), self._model)
        self._shipped.set()

    async def _announce(self, url: str) -> None:
        """One line on standard output once a client would be served."""
        kinds = {"video": self._settings.workers, "chat": self._chats}
        paths = ["/health", *(f"/ready?kind={kind}" for kind, workers in kinds.items() if workers)]
        began = time.monotonic()
        while not all([await asyncio.to_thread(_answers, url, path) for path in paths]):
            for process in (*self._workers, *self._apis):
                if process.starts > STARTS_MAX:
                    raise GaveUp(f"The process {process.name} ended {STARTS_MAX} times before the server was ready.")
            await asyncio.sleep(READY_EVERY_S)
        await self._shipped.wait()
        print(f"videoserve is ready at {url}", flush=True)
        log.info("ready", extra={"url": url, "after_s": round(time.monotonic() - began, 1)})

    def _signalled(self) -> None:
        if self._stop.is_set():
            for process in (*self._workers, *self._apis):
                process.kill()
        self._stop.set()

    async def _end(self) -> None:
        """Workers first: they hand their jobs back, and clients can still ask. Redis last: all of them write to it."""
        began = time.monotonic()
        await asyncio.gather(*(worker.stop(self._settings.drain_s + WORKER_GRACE_S) for worker in self._workers))
        await asyncio.gather(*(api.stop(API_GRACE_S) for api in self._apis))
        self._background.cancel()
        if self._redis is not None:
            self._redis.stop(REDIS_GRACE_S)
        if self._socket is not None:
            self._socket.close()
        log.info("ended", extra={"drain_s": round(time.monotonic() - began, 2)})


def chats_of(settings: Settings) -> int:
    """How many chat workers this server has; where there is no chat model its log says how it would get one.

    Raises ValueError, a sentence, for a chat model that is named and cannot be used.
    """
    try:
        chat_card(settings)
    except NoChat as reason:
        log.info(str(reason))
        return 0
    return settings.chat_workers


def threads_each(settings: Settings) -> int:
    """CPU threads for one rank of this server's workers: as set, or its share of the cores this process may use."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // max(1, settings.workers * settings.ranks))


def _answers(url: str, path: str) -> bool:
    """Whether GET answers 200. Any failure is a no: the server is on its way up."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


async def run_supervisor(settings: Settings) -> None:
    """`Supervisor(settings).run()`, made where its loop runs."""
    await Supervisor(settings).run()
