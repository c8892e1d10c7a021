"""The process of a worker.

    python -m videoserve.worker

reads its settings from the environment. Exit codes: 0 after SIGTERM (running jobs are checkpointed and handed back),
1 when the engine broke, 2 when the settings or the model cannot be used.
"""

import asyncio
import logging
import os
import signal

import torch

from videoserve.broker.broker import Broker
from videoserve.config import EXIT_REFUSED, WORKER_NEEDS_REDIS, Settings, load_settings
from videoserve.logs import start_logs
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.storage.files import FileStore
from videoserve.storage.open_files import open_files
from videoserve.types import Engine
from videoserve.video.engine import VideoEngine
from videoserve.video.quiet import quiet
from videoserve.worker.worker import CannotLoad, Worker

log = logging.getLogger(__name__)


def prepare(settings: Settings) -> tuple[str, FileStore, VideoEngine]:
    """The model's name, the file store and an engine that has not loaded yet. Raises ValueError, a sentence."""
    directory = resolve_model(settings.model)
    files = open_files(settings)
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    return ModelCard.read(directory).name, files, VideoEngine(settings, files, directory)


async def work(settings: Settings, model: str, files: FileStore, engine: Engine) -> None:
    """Runs a worker until SIGTERM or SIGINT."""
    broker = Broker.from_settings(settings)
    worker = Worker(broker, files, engine, model=model, lease_s=settings.lease_s, drain_s=settings.drain_s)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.run()


def run_worker(settings: Settings) -> int:
    """The exit code of a worker process with these settings."""
    start_logs(settings.log_level, "worker")
    quiet()
    try:
        if settings.redis_url is None:
            raise ValueError(WORKER_NEEDS_REDIS)
        parts = prepare(settings)
    except ValueError as error:
        log.error(str(error))
        return EXIT_REFUSED
    try:
        asyncio.run(work(settings, *parts))
    except CannotLoad as error:
        log.error(str(error))
        return EXIT_REFUSED
    except Exception:
        log.exception("the worker broke")
        return 1
    return 0


def main() -> None:
    """Ends the process without waiting for the engine's thread, which may be in the middle of a long step."""
    code = run_worker(load_settings({})[0])
    logging.shutdown()
    os._exit(code)
