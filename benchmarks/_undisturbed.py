"""Measurements on a rented machine: what its host took from it can be seen, and is measured again."""

from collections.abc import Callable
from pathlib import Path

STEALING = 0.05
TRIES = 20


def undisturbed(measure: Callable[[], float]) -> float:
    """What `measure` returns, once the host took at most a twentieth of the processors' time meanwhile.

    Exits with a sentence when it never was so. Where the kernel counts no stolen time the first one is it.
    """
    for _ in range(TRIES):
        before = _ticks()
        measured = measure()
        total, stolen = (after - earlier for after, earlier in zip(_ticks(), before, strict=True))
        if stolen <= STEALING * total:
            return measured
    raise SystemExit(
        f"In {TRIES} tries the host always took more than {STEALING:.0%} of the time: no time is worth it."
    )


def _ticks() -> tuple[int, int]:
    """Ticks of all processors since the start, and those of them that the host gave to others."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = [int(word) for word in stat.read_text().splitlines()[0].split()[1:]]
    return sum(ticks[:8]), ticks[7]
