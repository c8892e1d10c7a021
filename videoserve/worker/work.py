"""A worker of this process, from its first breath to the signal that ends it."""

import asyncio
import logging
import os
import signal

from videoserve.broker.broker import Broker
from videoserve.broker.patience import until_stored
from videoserve.config import EXIT_REFUSED, Settings
from videoserve.janitor import ForeignFiles, own_files
from videoserve.metrics import Meter
from videoserve.storage.files import FileStore
from videoserve.types import Engine
from videoserve.worker.rank import PART
from videoserve.worker.worker import CannotLoad, Worker
from videoserve_kernels.comm.exchange import CommunicationError

log = logging.getLogger(__name__)


def exit_code_of(
    settings: Settings,
    model: str,
    files: FileStore,
    engine: Engine,
    shown: dict[str, object] | None = None,
    meter: Meter | None = None,
) -> int:
    """Runs a worker until SIGTERM or SIGINT; 0, 1 when it broke or lost a rank, 2 when it must not begin as it is.

    `shown` is what the heartbeat tells besides, as it stands at each beat: changed in place, never in its keys. `meter`
    has what the engine counts, if it does.
    """
    try:
        asyncio.run(work(settings, model, files, engine, {} if shown is None else shown, meter))
    except (CannotLoad, ForeignFiles) as error:
        log.error(str(error))
        return EXIT_REFUSED
    except CommunicationError:
        # The worker has said so.
        return 1
    except Exception:
        log.exception("the worker broke")
        return 1
    return 0


async def work(
    settings: Settings,
    model: str,
    files: FileStore,
    engine: Engine,
    shown: dict[str, object],
    meter: Meter | None = None,
) -> None:
    broker = Broker.from_settings(settings)
    # Before anything is claimed: what a job needs must be among these files.
    try:
        await until_stored(lambda: own_files(broker, files))
    except ForeignFiles:
        await broker.close()
        raise
    shown.update(ranks=settings.ranks, parallel=settings.parallel)
    if settings.ranks > 1:
        shown["restarts"] = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    worker = Worker(
        broker,
        files,
        engine,
        model=model,
        lease_s=settings.lease_s,
        drain_s=settings.drain_s,
        shown=shown,
        meter=meter,
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    loop.add_signal_handler(PART, worker.part)
    await worker.run()
