"""A worker of several ranks without a model: its steps are sums over all ranks, made by the real collectives.

    python -c "from tests.rank_stand_in import main; main()"

reads its settings from the environment, as a worker does.
"""

import hashlib
import os
import time
from multiprocessing import forkserver
from typing import Any

import torch

from videoserve.config import Settings, load_settings
from videoserve.lifeline import bind_to_parent
from videoserve.logs import start_logs
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Emit, Event, Job
from videoserve.worker.group import run_group
from videoserve.worker.rank import leave
from videoserve.worker.work import exit_code_of
from videoserve_kernels.comm.channel import Channel
from videoserve_kernels.comm.collectives import all_reduce, broadcast
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

PRELOADED = ["videoserve.worker.fork_server", "torch.distributed.elastic.multiprocessing.api", "tests.rank_stand_in"]


class SumEngine:
    """A job is a chain: a step adds what every rank makes of the value before. `plan` has text, steps and step_s.

    plan["fatal"] is the step in which rank 1 ends, whatever the attempt.
    """

    kind = "video"

    def __init__(self, settings: Settings, files: FileStore) -> None:
        self._settings = settings
        self._files = files
        self._jobs: dict[str, tuple[Job, int, bytes]] = {}

    def load(self) -> None:
        self._channel = Channel()
        self._channel.tell({"kind": "begin"})
        self._mesh = mesh(self._settings)

    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None:
        at, value = (checkpoint["step"], self._files.read(checkpoint["sha256"])) if checkpoint else (0, b"")
        self._jobs[job.id] = (job, at, value)

    def step(self, emit: Emit) -> bool:
        if not self._jobs:
            return False
        job, at, value = next(iter(self._jobs.values()))
        self._channel.tell({"kind": "step", "fatal": job.plan.get("fatal") == at})
        time.sleep(job.plan["step_s"])
        value = shared_step(value + job.plan["text"].encode(), self._mesh)
        at += 1
        self._jobs[job.id] = (job, at, value)
        steps = job.plan["steps"]
        told = {"progress": 100 * at // steps, "step": at, "steps": steps, "eta_s": 0.0}
        emit(Event(job_id=job.id, kind="progress", data=told))
        if at == steps:
            del self._jobs[job.id]
            output = {"sha256": self._files.put(value), "bytes": len(value), "media_type": "video/mp4"}
            emit(Event(job_id=job.id, kind="done", data={"outputs": {"video": output}, "receipt": {"steps": steps}}))
        elif at % 5 == 0:
            emit(Event(job_id=job.id, kind="checkpoint", data=self._checkpoint(job.id)))
        return bool(self._jobs)

    def cancel(self, job_id: str) -> None:
        self._jobs.pop(job_id, None)

    def suspend(self, job_id: str) -> dict[str, Any] | None:
        checkpoint = self._checkpoint(job_id) if job_id in self._jobs else None
        self.cancel(job_id)
        return checkpoint

    def wants(self) -> Appetite | None:
        return None if self._jobs else Appetite(idle=True)

    def costs(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._channel.tell({"kind": "close"})

    def _checkpoint(self, job_id: str) -> dict[str, Any]:
        _, at, value = self._jobs[job_id]
        return {"sha256": self._files.put(value), "stage": "denoise", "step": at}


def follow(settings: Settings) -> int:
    channel = Channel()
    channel.hear()
    world = mesh(settings)
    while (header := channel.hear())["kind"] != "close":
        if header["fatal"]:
            os._exit(9)
        shared_step(None, world)
    return 0


def mesh(settings: Settings) -> Mesh:
    return Mesh(ParallelPlan(ulysses=settings.ranks), time_limit_s=settings.collective_timeout_s)


def shared_step(value: bytes | None, world: Mesh) -> bytes:
    """What all ranks together make of a value that rank 0 has."""
    digest = hashlib.sha256(value or b"").digest()
    seed = broadcast(torch.frombuffer(bytearray(digest), dtype=torch.uint8), world.world).wait()
    mine = contribution(bytes(seed.numpy()), world.rank)
    total = all_reduce(torch.tensor(list(mine), dtype=torch.int64), world.world).wait()
    return bytes(int(number) % 256 for number in total)


def contribution(seed: bytes, rank: int) -> bytes:
    return hashlib.sha256(seed + bytes([rank])).digest()


def chain_end(text: str, steps: int, ranks: int) -> bytes:
    """What an undisturbed job ends with."""
    value = b""
    for _ in range(steps):
        seed = hashlib.sha256(value + text.encode()).digest()
        parts = [contribution(seed, rank) for rank in range(ranks)]
        value = bytes(sum(column) % 256 for column in zip(*parts, strict=True))
    return value


def lead(settings: Settings) -> int:
    files = FileStore(settings.data / "files")
    return exit_code_of(settings, "sums", files, SumEngine(settings, files))


def run_stand_in(settings: Settings, folder: str, worker: int) -> None:
    bind_to_parent()
    leave(settings, folder, worker, lead, follow)


def main() -> None:
    settings = load_settings({})[0]
    start_logs(settings.log_level, "worker")
    forkserver.set_forkserver_preload(PRELOADED)
    os._exit(run_group(settings, 0, run_stand_in))
