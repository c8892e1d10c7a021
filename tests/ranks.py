"""N real gloo ranks on loopback: processes that stay, and run the functions that a test feeds them."""

import importlib.util
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

PATIENCE_S = 120.0


class World:
    """What a function on a rank gets first: who it is, and a mesh of any plan over all ranks."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self._meshes: dict[tuple[ParallelPlan, float], Mesh] = {}

    def mesh(self, *, time_limit_s: float = 60.0, **plan: Any) -> Mesh:
        """A mesh of this plan; the same one when asked again, with its counters at zero."""
        key = ParallelPlan(**plan), time_limit_s
        if key not in self._meshes:
            self._meshes[key] = Mesh(key[0], time_limit_s=time_limit_s)
        self._meshes[key].counters.clear()
        return self._meshes[key]

    def close(self) -> None:
        """Lets the meshes go."""
        for mesh in self._meshes.values():
            mesh.close()
        self._meshes.clear()


def let_go(world: World) -> None:
    """What ranks do between two files of tests."""
    world.close()


class RankFailed(AssertionError):
    """A function raised on some rank; the message has its traceback."""


class Ranks:
    """`size` processes, each a rank of one world. They start at the first call."""

    def __init__(self, size: int, folder: Path) -> None:
        self.size = size
        # Forked from a server that has torch already: eight imports would take longer than the tests.
        context = get_context("forkserver")
        context.set_forkserver_preload(
            ["videoserve.video.engine", "videoserve.video.follower", "tests.ranks", "tests.tiny", "pytest"]
        )
        pipes = [context.Pipe() for _ in range(size)]
        store = f"file://{folder / 'store'}"
        self._pipes: list[Connection] = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=serve, args=(rank, size, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(world, *arguments) on every rank; the results in order. RankFailed when one raised or died."""
        self.start(function, *arguments)
        answers = self.answers(range(self.size))
        failed = {rank: answer for rank, answer in answers.items() if isinstance(answer, BaseException)}
        if failed:
            self.close()
            raise RankFailed("\n".join(f"rank {rank}: {error}" for rank, error in failed.items()))
        return [answers[rank] for rank in range(self.size)]

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Lets every rank begin; `answers` fetches what came out."""
        for pipe in self._pipes:
            pipe.send((function.__code__.co_filename, function.__name__, arguments))

    def answers(self, ranks: Sequence[int], *, grace_s: float = 3.0) -> dict[int, Any]:
        """The result, or the exception, of these ranks. After the first exception the others get grace_s seconds."""
        waiting = {self._pipes[rank]: rank for rank in ranks}
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + PATIENCE_S
        while waiting:
            ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                for rank in waiting.values():
                    answers[rank] = RankFailed("gave no answer in time")
                return answers
            for pipe in ready:
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = RankFailed("the process died")
                if isinstance(answers[rank], BaseException):
                    # The others may wait for it.
                    deadline = min(deadline, time.monotonic() + grace_s)
        return answers

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal to one rank's process."""
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        """Kills the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    """The life of a rank: functions in, results out, until the other end is gone."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    # What nobody wrote is NaN, so that reading it shows. The public switch imports the compiler, which takes seconds.
    torch._C._set_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    world = World(rank, size)
    while True:
        try:
            path, name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = getattr(load(path), name)(world, *arguments)
        except Exception as error:
            answer = RankFailed("".join(traceback.format_exception(error)))
        pipe.send(answer)


@cache
def load(path: str) -> ModuleType:
    """A test module, by its file: test modules have no names to be imported by."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
