"""A look at this machine: everything that makes videos slow or impossible, in sentences."""

import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from videoserve.broker.server import find_server, version_of
from videoserve.config import Settings
from videoserve.local.cards_check import check_cards, check_nccl, check_peers
from videoserve.local.finding import Finding
from videoserve.local.system_check import Usage, check_disk, check_limits, check_redis, check_shared_memory
from videoserve_kernels.comm.peers import Peers, peers
from videoserve_kernels.comm.topology import look

# Where NCCL reads settings besides the environment: the administrator's, then the user's.
NCCL_FILES = ("etc/nccl.conf", ".nccl.conf")


def examine(
    settings: Settings,
    *,
    root: Path = Path("/"),
    environment: Mapping[str, str] = os.environ,
    home: Path | None = None,
    seen: int | None = None,
    pairs: Sequence[Peers] | None = None,
    usage: Usage | None = None,
    limits: tuple[int, int] | None = None,
) -> list[Finding]:
    """What is found, the cards first. What is not given is this machine's own.

    `root` is where sysfs and /dev are, `seen` how many cards torch sees, `pairs` what copies between them showed,
    `usage` tells (total, free) bytes of a path, `limits` are those of open files and of locked memory.
    """
    host = look(root)
    count = len(host.cards)
    usage = usage or disk_usage
    limits = limits or (soft(resource.RLIMIT_NOFILE), soft(resource.RLIMIT_MEMLOCK))
    seen = (torch.cuda.device_count() if torch.cuda.is_available() else 0) if seen is None else seen
    return [
        *check_cards(host, seen),
        *check_peers(peers() if pairs is None else pairs),
        *check_nccl(host, nccl_settings(root, home or Path.home(), environment)),
        *check_shared_memory(root, usage, count),
        *check_limits(*limits, count),
        *check_disk(settings.data, usage),
        *check_redis(find_server, version_of, settings.redis_url),
    ]


def nccl_settings(root: Path, home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """NCCL's variables: those of the environment before those of its files, the user's file before the system's."""
    told: dict[str, str] = {}
    for path in (root / NCCL_FILES[0], home / NCCL_FILES[1]):
        lines = path.read_text().splitlines() if path.is_file() else []
        pairs = [line.partition("=") for line in lines if "=" in line and not line.lstrip().startswith("#")]
        told |= {name.strip(): value.strip() for name, _, value in pairs}
    return told | {name: value for name, value in environment.items() if name.startswith("NCCL_")}


def disk_usage(path: Path) -> tuple[int, int]:
    told = shutil.disk_usage(path)
    return told.total, told.free


def soft(limit: int) -> int:
    """A limit of this process; -1 when there is none."""
    value = resource.getrlimit(limit)[0]
    return -1 if value == resource.RLIM_INFINITY else value
