"""How much a node keeps, and how long it waits for what."""

from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bytes and seconds.

    memory_bytes, disk_bytes   of one node, all its processes together; 0 leaves the tier out. A twentieth of each file
                               system is left free, whatever it holds: the cache gives way to others.
    device_bytes               of one process.
    patience_s   how long a lookup waits for Redis, once: after that nobody waits until it answers again.
    beat_s       how often a process tells what it used and asks what to delete; a node that has not beaten for
                 `life_s` is not asked for bytes, and after `forget_s` its replicas are forgotten.
    grace_s      a file that the index does not know is somebody's who is about to tell it, for so long.
    fetch_s      how long a peer may take, beyond a second for each 100 MB.
    """

    memory_bytes: int = 4 * GIB
    disk_bytes: int = 64 * GIB
    device_bytes: int = GIB // 2
    shared_memory: Path = Path("/dev/shm")
    patience_s: float = 0.05
    beat_s: float = 2.0
    life_s: float = 10.0
    forget_s: float = 24 * 3600.0
    grace_s: float = 60.0
    fetch_s: float = 1.0
