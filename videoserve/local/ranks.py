"""The ranks of a video without a server: a thread of this process leads them, the others are its children."""

import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
import torch.distributed as dist

from videoserve.config import Settings
from videoserve.errors import JobFailed
from videoserve.lifeline import bind_to_parent
from videoserve.planning.card import resolve_model
from videoserve.video.follower import follow
from videoserve.video.join import join, own_settings
from videoserve.video.quiet import quiet
from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.device import pick_device

T = TypeVar("T")


def led(settings: Settings, lead: Callable[[Settings], T]) -> T:
    """What `lead` returns or raises, called with the settings of rank 0 while the other ranks follow its engine.

    It must close that engine, which ends them. Raises ValueError for a device that is not there, and JobFailed when
    one of the others ends before.
    """
    for rank in range(settings.ranks):
        pick_device(own_settings(settings, rank, 0).device)
    context = get_context("spawn")
    with TemporaryDirectory(prefix="videoserve-ranks-") as folder:
        store = Path(folder) / "store"
        others = [
            context.Process(target=run_follower, args=(settings, rank, store)) for rank in range(1, settings.ranks)
        ]
        try:
            for process in others:
                process.start()
            return answer_beside(others, lambda: run_leader(settings, store, lead))
        finally:
            for process in others:
                process.kill()
                process.join()


def run_leader(settings: Settings, store: Path, lead: Callable[[Settings], T]) -> T:
    own = own_settings(settings, 0, 0)
    join(own, 0, store)
    try:
        answer = lead(own)
    except CommunicationError as error:
        raise JobFailed("rank_lost", f"The ranks lost each other: {error}") from error
    dist.destroy_process_group()
    return answer


def run_follower(settings: Settings, rank: int, store: Path) -> None:
    """The life of another rank."""
    bind_to_parent()
    # Ctrl-C in a terminal is for everybody; rank 0's process says so, and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()
    own = own_settings(settings, rank, 0)
    torch.set_num_threads(own.threads)
    try:
        join(own, rank, store)
        follow(own, resolve_model(own.model))
    except ValueError as error:
        sys.exit(str(error))


def answer_beside(others: Sequence[BaseProcess], work: Callable[[], T]) -> T:
    """What `work` answers in a thread: one that waits for a lost rank waits for long, and cannot be interrupted."""
    answer: Future[T] = Future()
    ours, theirs = connection.Pipe(duplex=False)

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)
        theirs.close()

    threading.Thread(target=run, name="rank-0", daemon=True).start()
    left = {process.sentinel: process for process in others}
    while ours not in (ready := connection.wait([ours, *left])):
        for process in [left.pop(sentinel) for sentinel in ready if isinstance(sentinel, int)]:
            process.join()
            if process.exitcode:
                rank = 1 + others.index(process)
                raise JobFailed("rank_lost", f"Rank {rank} ended with {process.exitcode} before the video was done.")
    return answer.result()
