"""Processes in the namespaces of an emulated box: gloo ranks that stay, and run functions that are sent to them."""

import ctypes
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

NEW_NETWORK, DIE_WITH_PARENT = 0x40000000, 1
# Options of malloc, and bytes: what it gives back to the kernel, and what it gets from there each time.
KEPT = ((-1, 2**30), (-3, 32 * 2**20))
PATIENCE_S = 120.0


class Rank:
    """What a function on a rank gets first: its number, and a mesh of any plan over all ranks."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._meshes: dict[ParallelPlan, Mesh] = {}

    def mesh(self, plan: ParallelPlan) -> Mesh:
        """The mesh of this plan, the same one when asked again, with its counters at zero."""
        if plan not in self._meshes:
            self._meshes[plan] = Mesh(plan, time_limit_s=PATIENCE_S)
        self._meshes[plan].counters.clear()
        return self._meshes[plan]


class EmulatedRanks:
    """One process in each of the namespaces, each a rank of one world. A context that ends them."""

    def __init__(self, namespaces: Sequence[str], real_time: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="videoserve-emulated-")
        # Forked from a server that has torch already: eight imports would take longer than the measurement.
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch.distributed", "videoserve_kernels.comm.usp"])
        pipes = [context.Pipe() for _ in namespaces]
        self._pipes: list[Connection] = [ours for ours, _ in pipes]
        store = f"file://{Path(self._folder.name) / 'store'}"
        self._processes = [
            context.Process(target=serve, args=(rank, len(namespaces), name, store, real_time, theirs), daemon=True)
            for rank, (name, (_, theirs)) in enumerate(zip(namespaces, pipes, strict=True))
        ]

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    def __len__(self) -> int:
        return len(self._pipes)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(rank, *arguments) on every rank; the results in order. RuntimeError when one raised or is late."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        waiting = dict(zip(self._pipes, range(len(self._pipes)), strict=True))
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE_S
        while waiting:
            ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RuntimeError(f"Ranks {sorted(waiting.values())} gave no answer within {PATIENCE_S:.0f} s.")
            for answered in ready:
                assert isinstance(answered, Connection)
                rank = waiting.pop(answered)
                answers[rank] = answered.recv()
                if isinstance(answers[rank], str):
                    raise RuntimeError(f"Rank {rank} raised:\n{answers[rank]}")
        return [answers[rank] for rank in range(len(self._pipes))]


def serve(rank: int, size: int, namespace: str, store: str, real_time: bool, pipe: Connection) -> None:
    """The life of a rank: into its namespace, then functions in and results out, until it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter(namespace)
    keep_memory()
    if real_time:
        # Others' work must not be waited for: it would be milliseconds of every message.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.environ["GLOO_SOCKET_IFNAME"] = "card"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE_S)
    )
    me = Rank(rank)
    while True:
        function, arguments = pipe.recv()
        try:
            answer = function(me, *arguments)
        except Exception:
            answer = traceback.format_exc()
        pipe.send(answer)


def enter(namespace: str) -> None:
    """Moves this process, which has one thread yet, into a network namespace, and ties its life to its parent's."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"Could not enter the network namespace {namespace}.")


def keep_memory() -> None:
    """Lets this process keep the memory it has had: getting it anew would cost a step more than what it does there."""
    libc = ctypes.CDLL(None)
    for option, limit in KEPT:
        libc.mallopt(option, limit)
