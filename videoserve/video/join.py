"""How a process becomes one rank of several: its device, its share of the cores, and the process group it joins."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from videoserve.config import Settings
from videoserve_kernels.device import pick_device

# Until every rank is there: one may still be importing while the others wait.
JOIN_S = 600.0
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def own_settings(settings: Settings, rank: int, worker: int) -> Settings:
    """The settings of one rank: its own device, counted on from the one that is set, and its share of the cores."""
    device = settings.device
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        first = int(device.partition(":")[2] or 0)
        device = f"cuda:{first + worker * settings.ranks + rank}"
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.ranks)
    return settings.model_copy(update={"device": device, "threads": threads})


def join(settings: Settings, rank: int, store: Path) -> None:
    """Makes this process a rank of torch.distributed's world; `store` is the file by which the ranks find each other.

    Nothing of it can be reached from another machine. Raises ValueError, a sentence, for a device that is not there.
    """
    device = pick_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=JOIN_S),
    )
