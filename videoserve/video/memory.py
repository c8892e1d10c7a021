"""How much memory a piece of work takes at most, and what running out of it looks like."""

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from videoserve.video.run import Record

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
# A plain RuntimeError is all that the CPU allocator and cuBLAS raise.
_REFUSED = ("DefaultCPUAllocator", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
# Writing this resets the kernel's record of the largest resident size; see proc(5).
_RESET_PEAK = "5"


@contextmanager
def peak_memory(device: torch.device, *records: Record) -> Iterator[None]:
    """Raises the peak of `records` to that of the work inside: bytes of the device, or of this process on a CPU."""
    start(device)
    try:
        yield
    finally:
        peak = read(device)
        for record in records:
            record.peak_memory = max(record.peak_memory, peak)


def start(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif _CLEAR.exists():
        _CLEAR.write_text(_RESET_PEAK)


def read(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if not _STATUS.exists():
        # Only since the process began, and in bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation was refused, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _REFUSED)


def release(device: torch.device) -> None:
    """Gives what is no longer used back to the device; a failure may have left it in a cycle of frames."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
