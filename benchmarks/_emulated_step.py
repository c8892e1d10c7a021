"""What the ranks of an emulated box do: attention as it is, to compare; shifts and steps that sleep, to time."""

import time
from dataclasses import dataclass

import torch
from _emulated_ranks import PATIENCE_S, Rank
from torch import Tensor

from videoserve_kernels.attention import attend
from videoserve_kernels.comm.calibrate import calibrate
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.collectives import shift
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.forecast import Model
from videoserve_kernels.comm.gather import gather_sequence
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import Islands
from videoserve_kernels.comm.usp import attention

# Tokens and heads that do not divide by eight.
LENGTH, HEADS, CHANNELS = 77, 41, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One step on one rank: monotonic seconds of its begin and end, and what it sent."""

    begin: float
    end: float
    sent: Traffic


def error(rank: Rank, plan: ParallelPlan) -> float:
    """How far attention over the ranks is from attention on one: the largest difference, relative to the largest."""
    mesh = rank.mesh(plan)
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 1, LENGTH, HEADS, CHANNELS, generator=generator).unbind()
    q_here, k_here, v_here = (x[:, mesh.shard(x.shape[1])] for x in (q, k, v))
    mine = attention(q_here, k_here, v_here, mesh, length=LENGTH)
    whole = attend(q, k, v)
    return float((gather_sequence(mine, mesh, length=LENGTH) - whole).abs().max() / whole.abs().max())


def timed_step(rank: Rank, plan: ParallelPlan, model: Model) -> Timed:
    """One step of the model: its exchanges as they are, its computing slept. Branches without own ranks are a batch."""
    mesh = rank.mesh(plan)
    layer = model.layer
    branches = model.branches // plan.cfg
    tokens = mesh.lengths(layer.length)[mesh.sequence.index]
    q, k, v = (
        torch.ones(branches * layer.batch, tokens, heads, layer.channels, dtype=torch.bfloat16)
        for heads in (layer.query_heads, layer.key_heads, layer.key_heads)
    )
    pairs = layer.length**2 * layer.query_heads

    def asleep(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(branches * model.attention_s * q.shape[1] * k.shape[1] * q.shape[2] / pairs)
        return q, torch.zeros(q.shape[:3])

    mesh.end_step()
    mesh.counters.clear()
    begin = time.monotonic()
    for _ in range(model.layers):
        attention(q, k, v, mesh, length=layer.length, kernel=asleep)
        time.sleep(branches * model.other_s * tokens / layer.length)
    end = time.monotonic()
    sent = mesh.counters.sent()
    mesh.end_step()
    return Timed(begin=begin, end=end, sent=sent)


def shifts(rank: Rank, plan: ParallelPlan, size: int, turns: int) -> Timed:
    """Everybody passes `size` bytes on to the next in the ring, `turns` times."""
    mesh = rank.mesh(plan)
    held = torch.zeros(size, dtype=torch.uint8)
    mesh.end_step()
    mesh.counters.clear()
    begin = time.monotonic()
    for _ in range(turns):
        shift(held, [size] * mesh.ring.size, mesh.ring).wait()
    end = time.monotonic()
    sent = mesh.counters.sent()
    mesh.end_step()
    return Timed(begin=begin, end=end, sent=sent)


def calibrated(rank: Rank, believed: Islands, budget_s: float) -> Calibration:
    """What the product's own calibration finds of the links."""
    return calibrate("emulated", believed=believed, budget_s=budget_s, time_limit_s=PATIENCE_S)
