"""How large a file of unknown origin may be, and what checking it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a file and of the process that checks it; `memory_bytes` is that process's whole address space."""

    header_bytes: int = 8 << 20
    tensors: int = 20_000
    dim: int = 1 << 20
    file_bytes: int = 4 << 30
    rank: int = 512
    memory_bytes: int = 512 << 20
    cpu_s: int = 120


# Every module's slot is as wide as the widest: one of thousands would take more than the model.
SLOT_RANK = 512


def slot_rank(rank: int) -> int | None:
    """The rank itself; None for a change that goes into the weight as a whole instead."""
    return rank if rank <= SLOT_RANK else None
