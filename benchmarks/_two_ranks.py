"""Two ranks of one thread each on this machine, gloo on loopback, with the demo model: what two benchmarks run on."""

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from videoserve.config import Settings
from videoserve.planning.card import resolve_model
from videoserve.storage.files import FileStore
from videoserve.video.engine import VideoEngine
from videoserve.video.follower import follow

Lead = Callable[[VideoEngine, Path, argparse.Namespace], None]


def two_ranks(lead: Lead, chosen: argparse.Namespace) -> None:
    """Runs `lead` on rank 0 with an engine that has not loaded, the model and `chosen`; rank 1 follows it.

    Exits with 1 when a rank fails, which has said why. `lead` is a function of a module, and closes the engine.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as data:
        ranks = [context.Process(target=_rank, args=(rank, Path(data), lead, chosen)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit(1)


def _rank(rank: int, data: Path, lead: Lead, chosen: argparse.Namespace) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{data}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    model = resolve_model("demo")
    settings = Settings(data=data, device="cpu", dtype="float32", ranks=2, batch=1)
    if rank:
        follow(settings, model)
    else:
        lead(VideoEngine(settings, FileStore(data / "files"), model), model, chosen)
