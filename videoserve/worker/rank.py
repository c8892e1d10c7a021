"""One rank of a worker: its process, from the fork to its exit code."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

from videoserve.config import EXIT_REFUSED, Settings
from videoserve.lifeline import bind_to_parent
from videoserve.logs import start_logs

log = logging.getLogger(__name__)

# Tells the rank that leads that another one is gone.
PART = signal.SIGUSR1


def run_rank(settings: Settings, folder: str, worker: int) -> None:
    """The life of a rank, from its fork to the end of its process, which has a worker's exit codes.

    torch's elastic agent calls this in each new process; `folder` is the group's own, and `worker` the number of the
    worker among those of its server.
    """
    bind_to_parent()
    # Here, so that the agent does not import them.
    from videoserve.worker.run import run_follower, run_worker

    leave(settings, folder, worker, run_worker, run_follower)


def run_chat_rank(settings: Settings, folder: str, worker: int) -> None:
    """The life of a rank of a chat worker, whose settings these are; see run_rank."""
    bind_to_parent()
    from videoserve.worker.run_chat import follow_chats, lead_chats

    leave(settings, folder, worker, lead_chats, follow_chats)


def leave(
    settings: Settings,
    folder: str,
    worker: int,
    lead: Callable[[Settings], int],
    follow: Callable[[Settings], int],
) -> None:
    """Joins the group, then does what rank 0 does or what the others do, and ends the process with its exit code.

    Without waiting for the engine's thread, which may be in the middle of a long step.
    """
    rank = int(os.environ["RANK"])
    # Ctrl-C in a terminal is for the agent, which then ends its ranks in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if rank:
        # Rank 0 needs the others until it has handed its jobs over.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_logs(settings.log_level, f"rank-{rank}")
    log.info("rank started", extra={"rank": rank, "worker": worker})
    code = exit_code(settings, folder, worker, lead if rank == 0 else follow)
    logging.shutdown()
    os._exit(code)


def exit_code(settings: Settings, folder: str, worker: int, live: Callable[[Settings], int]) -> int:
    from videoserve.video.join import join, own_settings
    from videoserve_kernels.comm.exchange import CommunicationError

    try:
        rank = int(os.environ["RANK"])
        own = own_settings(settings, rank, worker)
        join(own, rank, Path(folder) / f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}")
        return live(own)
    except ValueError as error:
        log.error(str(error))
        return EXIT_REFUSED
    except CommunicationError as error:
        log.error("another rank is lost", extra={"reason": str(error)})
        return 1
    except Exception:
        log.exception("the rank broke")
        return 1
