"""Data-parallel processes of one thread each: on a shared CPU they lose less than threads that wait for each other."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

# Whoever needs the machine may stop a training for as long as it likes.
PATIENCE = timedelta(hours=12)


def launch(module: str, arguments: list[str], work: Path, processes: int) -> None:
    """Run `python -m module arguments --rank r --world n --rendezvous FILE` n times and wait for all.

    The children keep the module's name on their command line. Raises when one of them fails; the others are ended.
    """
    meeting = work / f"rendezvous-{uuid.uuid4().hex}"
    common = [sys.executable, "-m", module, *arguments, f"--world={processes}", f"--rendezvous={meeting}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen([*common, f"--rank={rank}"], env=environment) for rank in range(processes)]
    try:
        for child in children:
            if child.wait() != 0:
                raise SystemExit(f"{module}: process {child.pid} ended with status {child.returncode}")
    finally:
        for child in children:
            child.terminate()
        meeting.unlink(missing_ok=True)


def join(rank: int, world: int, rendezvous: str) -> None:
    """Make this process number `rank` of `world` over gloo, one thread."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=PATIENCE
    )


def agree(value: float) -> float:
    """The value of process 0, in every process."""
    shared = torch.tensor([value], dtype=torch.float64)
    distributed.broadcast(shared, 0)
    return float(shared)


def average_gradients(parameters: Iterable[torch.nn.Parameter], limit: float) -> float:
    """Average the gradients over the processes and clip their norm to `limit`; returns the norm before."""
    parameters = list(parameters)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    norm = float(flat.norm())
    flat *= min(1.0, limit / (norm + 1e-6))
    for parameter, piece in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = piece.view(parameter.shape)
    return norm


def share_weights(module: torch.nn.Module) -> None:
    """Give every process the weights of process 0."""
    for parameter in module.parameters():
        data = parameter.data.contiguous()
        distributed.broadcast(data, 0)
        parameter.data.copy_(data)
