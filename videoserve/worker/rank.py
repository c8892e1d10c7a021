"""One rank of a worker: its process, its device, and the process group it joins."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from videoserve.config import EXIT_REFUSED, Settings
from videoserve.lifeline import bind_to_parent
from videoserve.logs import start_logs

log = logging.getLogger(__name__)

# Tells the rank that leads that another one is gone.
PART = signal.SIGUSR1
# Until every rank is there: one may still be importing while the others wait.
JOIN_S = 600.0
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def run_rank(settings: Settings, folder: str, worker: int) -> None:
    """The life of a rank, from its fork to the end of its process, which has a worker's exit codes.

    torch's elastic agent calls this in each new process; `folder` is the group's own, and `worker` the number of the
    worker among those of its server.
    """
    bind_to_parent()
    # Here, so that the agent does not import them.
    from videoserve.worker.run import run_follower, run_worker

    leave(settings, folder, worker, run_worker, run_follower)


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
    from videoserve_kernels.comm.exchange import CommunicationError

    try:
        own = own_settings(settings, int(os.environ["RANK"]), worker)
        join(own, Path(folder) / f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}")
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


def own_settings(settings: Settings, rank: int, worker: int) -> Settings:
    """The settings of one rank: its own device, counted on from the one that is set, and its share of the cores."""
    import torch

    device = settings.device
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        first = int(device.partition(":")[2] or 0)
        device = f"cuda:{first + worker * settings.ranks + rank}"
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.ranks)
    return settings.model_copy(update={"device": device, "threads": threads})


def join(settings: Settings, store: Path) -> None:
    """Makes this process a rank of torch.distributed's world; `store` is the file by which the ranks find each other.

    Nothing of it can be reached from another machine. Raises ValueError, a sentence, for a device that is not there.
    """
    import torch
    import torch.distributed as dist

    from videoserve.video.environment import pick_device

    device = pick_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=settings.ranks,
        timeout=timedelta(seconds=JOIN_S),
    )
