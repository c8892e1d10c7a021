"""The links of this machine, measured by as many processes as a worker has ranks."""

import os
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from videoserve.lifeline import bind_to_parent
from videoserve.video.links import places_of
from videoserve_kernels.comm import calibration
from videoserve_kernels.comm.calibrate import calibrate, name_of
from videoserve_kernels.comm.calibration import NO_BACKEND, Calibration
from videoserve_kernels.comm.choices import Choices
from videoserve_kernels.comm.topology import Islands, islands_of, look

# Until ranks that do not answer are given up: they start, import torch, and measure.
PATIENCE_S = 180.0


class MeasureFailed(Exception):
    """The ranks did not get to the end; the message says what the first of them met."""


def kept_or_measured(
    data: Path,
    ranks: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    again: bool = False,
) -> Calibration:
    """What was kept for this host and so many ranks; measured, and kept, when nothing was or `again` is asked.

    With `again` workers that start from now on choose their plans anew as well. ValueError for more ranks than there
    are cards.
    """
    fingerprint, backend = look().fingerprint_for(places_of(ranks, device)), backend_of(ranks, device)
    if again:
        calibration.forget(data, fingerprint, ranks, backend, name_of(dtype))
        Choices(data, fingerprint).forget()
    return calibration.once(data, fingerprint, ranks, backend, name_of(dtype), lambda: measure(ranks, device, dtype))


def measure(ranks: int, device: torch.device, dtype: torch.dtype) -> Calibration:
    """Starts the ranks, has them measure each other, and ends them. MeasureFailed when one of them fails."""
    host, places = look(), places_of(ranks, device)
    fingerprint = host.fingerprint_for(places)
    believed = islands_of(host, places) if places else ()
    if device.type == "cuda" and len(places) < ranks:
        raise ValueError(f"ranks is {ranks}; {len(places)} cards are here from {device} on, one for each rank.")
    if ranks == 1:
        return calibrate(fingerprint, device=device, dtype=dtype)
    context = get_context("spawn")
    with TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(
                target=run_rank,
                args=(
                    rank,
                    ranks,
                    f"file://{folder}/store",
                    device_of(rank, device),
                    dtype,
                    fingerprint,
                    believed,
                    theirs,
                ),
                daemon=True,
            )
            for rank, (_, theirs) in enumerate(pipes)
        ]
        try:
            for process, (_, theirs) in zip(processes, pipes, strict=True):
                process.start()
                theirs.close()
            return first_answer([ours for ours, _ in pipes], PATIENCE_S)
        finally:
            for process in processes:
                process.kill()
                process.join()


def first_answer(pipes: list[Connection], patience_s: float) -> Calibration:
    """All ranks come to the same figures: the first to tell them tells for all."""
    ready = connection.wait(pipes, timeout=patience_s)
    if not ready:
        raise MeasureFailed(f"The ranks did not measure each other within {patience_s:.0f} seconds.")
    first = ready[0]
    assert isinstance(first, Connection)
    try:
        answer = first.recv()
    except EOFError:
        raise MeasureFailed(f"Rank {pipes.index(first)} ended while the ranks measured each other.") from None
    if isinstance(answer, Calibration):
        return answer
    raise MeasureFailed(f"Rank {pipes.index(first)} could not measure: {answer}")


def run_rank(
    rank: int,
    ranks: int,
    store: str,
    device: torch.device,
    dtype: torch.dtype,
    fingerprint: str,
    believed: Islands,
    pipe: Connection,
) -> None:
    """One of the processes: joins the others, measures, answers."""
    bind_to_parent()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(max((os.cpu_count() or 1) // ranks, 1))
    try:
        dist.init_process_group(
            backend_of(ranks, device), init_method=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
        )
        answer: object = calibrate(fingerprint, device=device, dtype=dtype, believed=believed)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    pipe.send(answer)


def device_of(rank: int, device: torch.device) -> torch.device:
    """That of a rank: cards are counted on from the one that is set."""
    return torch.device("cuda", (device.index or 0) + rank) if device.type == "cuda" else device


def backend_of(ranks: int, device: torch.device) -> str:
    if ranks == 1:
        return NO_BACKEND
    return "nccl" if device.type == "cuda" else "gloo"
