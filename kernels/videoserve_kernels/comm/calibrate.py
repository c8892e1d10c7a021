"""Measures the links between the ranks of a running world, and what each of them computes: about 20 seconds."""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from videoserve_kernels.comm.calibration import NO_BACKEND, Calibration, HostCopies
from videoserve_kernels.comm.clusters import GAP, clusters
from videoserve_kernels.comm.mesh import CPU
from videoserve_kernels.comm.probe import REPEATS, Probe
from videoserve_kernels.comm.speed import attention_rate, linear_rate
from videoserve_kernels.comm.topology import Islands

# Seconds by the kind of device. Ranks on processors talk through the host's memory: there is little to find out.
BUDGET_S = {"cuda": 20.0, "cpu": 3.0}
# The share of it that goes to messages; the rest to what surrounds them, and to computing.
FOR_MESSAGES = 0.6
# Bytes that are copied to a card.
COPIED = 2**26


def calibrate(
    fingerprint: str,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
    believed: Islands = (),
    budget_s: float | None = None,
    time_limit_s: float = 30.0,
) -> Calibration:
    """What the links and ranks of torch.distributed's world give; every rank calls it and all get the same.

    `believed` are the islands by the host's own description: they count where the pairs alone show none, but crossing
    them together costs. `budget_s` seconds is about how long it takes, BUDGET_S of the device when it is not said.
    CommunicationError when a peer is lost.
    """
    budget_s = BUDGET_S[device.type] if budget_s is None else budget_s
    began = time.monotonic()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return alone(fingerprint, device, dtype)
    probe = Probe(dist.get_world_size(), device, time_limit_s)
    everybody = [range(probe.ranks)]
    try:
        runs = probe.ranks * (probe.ranks - 1) // 2 + (probe.ranks - 1) + 6
        probe.size_for(FOR_MESSAGES * budget_s / runs / REPEATS)
        pairs = pair_rates(probe)
        islands, trunk = find_islands(probe, pairs, believed)
        return Calibration(
            fingerprint=fingerprint,
            ranks=probe.ranks,
            backend=dist.get_backend(),
            device=device.type,
            dtype=name_of(dtype),
            pairs=pairs,
            shifts=tuple(probe.rate(probe.next_ones(distance)) for distance in range(1, probe.ranks)),
            all_to_all=probe.rate_of_all(everybody, staged=False),
            all_to_all_staged=probe.rate_of_all(everybody, staged=True),
            islands=islands,
            neighbours=probe.rate(next_within(islands)),
            crossing=probe.rate_of_all(islands, staged=False),
            trunk=trunk,
            latency_s=probe.latency(),
            at_once_bytes=probe.at_once_bytes(),
            # All compute at the same time, and the slowest is waited for.
            attention=1 / probe.longest(1 / attention_rate(device, dtype)),
            linear=1 / probe.longest(1 / linear_rate(device, dtype)),
            card_bytes=memory(device),
            host_copies=copy_rates(probe) if device.type == "cuda" else None,
            seconds=probe.longest(time.monotonic() - began),
        )
    finally:
        probe.close()


def alone(fingerprint: str, device: torch.device, dtype: torch.dtype) -> Calibration:
    """One rank: nothing to measure but what it computes."""
    began = time.monotonic()
    return Calibration(
        fingerprint=fingerprint,
        ranks=1,
        backend=NO_BACKEND,
        device=device.type,
        dtype=name_of(dtype),
        pairs=((0.0,),),
        shifts=(),
        all_to_all=0.0,
        all_to_all_staged=0.0,
        islands=((0,),),
        neighbours=0.0,
        crossing=0.0,
        trunk=None,
        latency_s=0.0,
        at_once_bytes=0,
        attention=attention_rate(device, dtype),
        linear=linear_rate(device, dtype),
        card_bytes=memory(device),
        host_copies=None,
        seconds=time.monotonic() - began,
    )


def pair_rates(probe: Probe) -> tuple[tuple[float, ...], ...]:
    """Bytes/s each way between any two ranks, both sending, nobody else at work."""
    rates = [[0.0] * probe.ranks for _ in range(probe.ranks)]
    for one in range(probe.ranks):
        for other in range(one):
            rates[one][other] = rates[other][one] = probe.rate({one: other, other: one})
    return tuple(tuple(row) for row in rates)


def find_islands(probe: Probe, pairs: Sequence[Sequence[float]], believed: Islands) -> tuple[Islands, float | None]:
    """The islands, and the rate from one to the next; None with one island.

    Where the pairs alone show none, those of the host's description are tried: crossing them together has to cost.
    """
    found = clusters(pairs)
    if len(found) > 1:
        return found, across(probe, found)
    if len(believed) > 1 and sum(map(len, believed)) == probe.ranks and max(map(len, believed)) > 1:
        trunk = across(probe, believed)
        streams = min(map(len, believed))
        if trunk / streams * GAP <= probe.rate(next_within(believed)):
            return believed, trunk
    return found, None


def across(probe: Probe, islands: Islands) -> float:
    """Bytes/s from an island to the next one, as many streams as the smaller has ranks, all islands at once."""
    targets: dict[int, int] = {}
    for number, island in enumerate(islands):
        after = islands[(number + 1) % len(islands)]
        targets.update(zip(island, after, strict=False))
    return min(map(len, islands)) * probe.rate(targets)


def next_within(islands: Islands) -> dict[int, int]:
    """Everybody to the next one of its island; who is alone sends nothing."""
    return {
        rank: island[(place + 1) % len(island)]
        for island in islands
        if len(island) > 1
        for place, rank in enumerate(island)
    }


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def memory(device: torch.device) -> float | None:
    """Bytes of a card; None where it is the host's."""
    return float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else None


def copy_rates(probe: Probe) -> HostCopies:
    """Pinned host memory to the card, alone and beside a shift."""
    host = torch.ones(COPIED, dtype=torch.uint8).pin_memory()
    there = torch.empty(COPIED, dtype=torch.uint8, device=probe.device)
    stream = torch.cuda.Stream(probe.device)  # type: ignore[no-untyped-call]

    def copy() -> None:
        with torch.cuda.stream(stream):
            there.copy_(host, non_blocking=True)

    def both() -> None:
        copy()
        probe.send(probe.next_ones())

    alone = COPIED / probe.seconds(copy)
    together = probe.seconds(both)
    return HostCopies(alone=alone, beside=COPIED / together, shift=probe.size / together)
