"""What was measured between and on the ranks of a host, as a value that is kept under the host's fingerprint."""

import fcntl
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.transformer import Rates
from videoserve_kernels.kept_json import read_json, write_json

# Goes up when the fields of a Calibration change: what was kept before is measured again.
FORMAT = 2
# A rank alone has no links; its box needs some rate.
ALONE = 1.0
NO_BACKEND = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """Bytes/s from pinned host memory to a card, alone, and at least those of a copy and a shift side by side."""

    alone: float
    beside: float
    shift: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates in bytes/s each way. One rank has no pairs, shifts or exchanges: empty or 0.

    pairs           between two ranks with nobody else at work; 0 on the diagonal
    shifts          a rank's, everybody sending to the rank `distance` further; distances from 1
    all_to_all      a rank's, everybody to everybody at once; `all_to_all_staged` in shifts one after the other
    neighbours      a rank's, everybody sending to the next one of its island; `crossing` everybody to all of them
    trunk           from an island to the next one, all their ranks together; None with one island
    latency_s       seconds a message of a few bytes takes
    at_once_bytes   up to which size everybody sends a sum's whole to everybody rather than sum shares and gather them
    attention, linear   floating-point operations a second of a rank while all of them compute
    card_bytes      memory of a card; None where it is the host's
    host_copies     None on a device that shares the host's memory
    """

    fingerprint: str
    ranks: int
    backend: str
    device: str
    dtype: str
    pairs: tuple[tuple[float, ...], ...]
    shifts: tuple[float, ...]
    all_to_all: float
    all_to_all_staged: float
    islands: tuple[tuple[int, ...], ...]
    neighbours: float
    crossing: float
    trunk: float | None
    latency_s: float
    at_once_bytes: int
    attention: float
    linear: float
    card_bytes: float | None
    host_copies: HostCopies | None
    seconds: float

    @property
    def rates(self) -> Rates:
        return Rates(attention=self.attention, linear=self.linear)

    @property
    def box(self) -> Box:
        """The measured links as the simulator takes them."""
        if self.ranks == 1:
            return Box(ranks=1, card=ALONE)
        homes = {rank: number for number, island in enumerate(self.islands) for rank in island}
        return Box(
            ranks=self.ranks,
            card=self.neighbours,
            trunk=self.trunk if self.trunk is not None else float("inf"),
            collapse=min(self.crossing / self.neighbours, 1.0),
            latency=self.latency_s,
            homes=tuple(homes[rank] for rank in range(self.ranks)),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> "Calibration":
        copies = told["host_copies"]
        tuples: dict[str, Any] = {
            "pairs": as_table(told["pairs"]),
            "islands": as_table(told["islands"]),
            "shifts": tuple(told["shifts"]),
            "host_copies": HostCopies(**copies) if copies else None,
        }
        return cls(**(told | tuples))


def as_table(rows: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)


def path(data: Path, fingerprint: str, ranks: int, backend: str, dtype: str) -> Path:
    return data / "calibrations" / f"{FORMAT}-{fingerprint}-{backend}-{dtype}-{ranks}.json"


def once(
    data: Path, fingerprint: str, ranks: int, backend: str, dtype: str, measure: Callable[[], Calibration]
) -> Calibration:
    """What was kept for this host, or what `measure` gives now, which is kept.

    Processes that measure one host wait for each other, so that they neither disturb each other nor do it twice.
    """
    target = path(data, fingerprint, ranks, backend, dtype)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{fingerprint}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = load(data, fingerprint, ranks, backend, dtype)
        if kept is None:
            kept = measure()
            save(data, kept)
        return kept


def save(data: Path, calibration: Calibration) -> None:
    """Keeps it in the data folder, in place of an earlier one of the same host, ranks, backend and dtype."""
    target = path(data, calibration.fingerprint, calibration.ranks, calibration.backend, calibration.dtype)
    write_json(target, calibration.to_dict())


def forget(data: Path, fingerprint: str, ranks: int, backend: str, dtype: str) -> None:
    """Lets go of what was kept, so that it is measured anew."""
    path(data, fingerprint, ranks, backend, dtype).unlink(missing_ok=True)


def load(data: Path, fingerprint: str, ranks: int, backend: str, dtype: str) -> Calibration | None:
    """What was kept for this host, so many ranks, backend and dtype; None when nothing was."""
    told = read_json(path(data, fingerprint, ranks, backend, dtype))
    return None if told is None else Calibration.from_dict(told)
