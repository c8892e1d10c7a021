"""What the ranks of the stages do: a prompt, and steps of answers, by the layouts and messages of a stage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from _emulated_ranks import Rank
from _text_stages_model import CPU, GIB, STREAMS, answers, beginnings, prompt, read
from torch import Tensor

from videoserve.text.models.deepseek_v4 import DeepseekV4
from videoserve.text.models.deepseek_v4_pool import V4Pool
from videoserve.text.sharing import Layout, Sharing
from videoserve_kernels import norm, norm_rope, streams
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

# Doors whose formula is a few plain operations on all tokens at once.
PLAIN = (
    (norm, "RMS_NORM"), (norm_rope, "BACKENDS"), (streams, "OPEN"), (streams, "CLOSE"), (streams, "JOIN"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`plain`: norms, rotations and streams by their formulas, operation by operation."""

    name: str
    plain: bool = False
    at_once: bool = False
    overlaps: bool = False
    prompts_by: Layout = "heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Monotonic seconds of begin and end of each forward, and what was sent in one."""

    times: tuple[tuple[float, float], ...]
    sent: Traffic


def said(rank: Rank | None, folder: str, stage: Stage, at_once_bytes: int, tokens: int, steps: int) -> list[Tensor]:
    """Logits of a long prompt, of short ones, and of steps of answers behind those; of one rank without a rank."""
    model, pool = _model(rank, folder, stage, at_once_bytes)
    with kernels(stage):
        found = [model.forward(prompt(tokens), pool, stage.prompts_by)]
        found.append(model.forward(beginnings(), pool, stage.prompts_by))
        found += [model.forward(answers(step), pool) for step in range(steps)]
    return found


def timed_prompt(rank: Rank, folder: str, stage: Stage, at_once_bytes: int, tokens: int) -> Timed:
    model, pool = _model(rank, folder, stage, at_once_bytes)
    batch, mesh = prompt(tokens), _mesh(rank)
    mesh.end_step()
    mesh.counters.clear()
    with kernels(stage):
        begin = time.monotonic()
        model.forward(batch, pool, stage.prompts_by)
        end = time.monotonic()
    sent = mesh.counters.sent()
    mesh.end_step()
    return Timed(times=((begin, end),), sent=sent)


def timed_answers(rank: Rank, folder: str, stage: Stage, at_once_bytes: int, steps: int) -> Timed:
    """Steps of all streams, each timed; the messages of one."""
    model, pool = _model(rank, folder, stage, at_once_bytes)
    mesh, times = _mesh(rank), []
    batches = [answers(step) for step in range(steps)]
    with kernels(stage):
        model.forward(beginnings(), pool, stage.prompts_by)
        for batch in batches:
            mesh.end_step()
            mesh.counters.clear()
            begin = time.monotonic()
            model.forward(batch, pool)
            times.append((begin, time.monotonic()))
    sent = mesh.counters.sent()
    mesh.end_step()
    return Timed(times=tuple(times), sent=sent)


@contextmanager
def kernels(stage: Stage) -> Iterator[None]:
    """The doors of a stage."""
    before = [getattr(module, name) for module, name in PLAIN]
    if stage.plain:
        for (module, name), table in zip(PLAIN, before, strict=True):
            setattr(module, name, tuple(backend for backend in table if backend.name == "reference"))
    try:
        yield
    finally:
        for (module, name), table in zip(PLAIN, before, strict=True):
            setattr(module, name, table)


def _mesh(rank: Rank) -> Mesh:
    return rank.mesh(ParallelPlan(tensor=_ranks(), staged=False))


def _ranks() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


@cache
def _model(rank: Any, folder: str, stage: Stage, at_once_bytes: int) -> tuple[DeepseekV4, V4Pool]:
    sharing = None
    if rank is not None:
        sharing = Sharing(
            mesh=_mesh(rank), overlaps=stage.overlaps, at_once_bytes=at_once_bytes if stage.at_once else 0
        )
    model = DeepseekV4(read(folder), device=CPU, dtype=torch.float32, sharing=sharing)
    return model, model.pool(GIB, STREAMS)
