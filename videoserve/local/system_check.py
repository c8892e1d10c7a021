"""What the doctor says of the machine around the cards: shared memory, limits, disk and Redis."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from videoserve.broker.durability import OLDEST
from videoserve.local.finding import Finding, good

GIB = 2**30
# Bytes of /dev/shm below which ranks cannot talk through it; Docker gives 64 MiB.
SHM = GIB
# Open files: connections of clients, of API processes to Redis, blobs.
FILES = 4096
# Bytes of disk below which a server stops soon, and below which it should be watched.
DISK_LEAST, DISK_SCARCE = GIB, 10 * GIB
# (total, free) bytes of the file system of a path.
Usage = Callable[[Path], tuple[int, int]]


def check_shared_memory(root: Path, usage: Usage, cards: int) -> Iterator[Finding]:
    if not (root / "dev/shm").is_dir():
        yield Finding(
            about="shared memory",
            level="wrong",
            found="There is no /dev/shm.",
            matters="NCCL and torch keep what processes share there.",
            do="Mount a tmpfs at /dev/shm.",
        )
        return
    total, free = usage(root / "dev/shm")
    if free < SHM and cards > 1:
        yield Finding(
            about="shared memory",
            level="wrong",
            found=f"/dev/shm has {free / GIB:.2f} of {total / GIB:.2f} GiB free.",
            matters="NCCL keeps its buffers between ranks there, and does not start when they do not fit.",
            do="Start the container with --shm-size=1g or more (in compose: shm_size), or remount it larger.",
        )
    else:
        yield good("shared memory", f"/dev/shm has {free / GIB:.1f} of {total / GIB:.1f} GiB free.")


def check_limits(files: int, locked: int, cards: int) -> Iterator[Finding]:
    """`files` and `locked` are the soft limits of open files and of locked memory; -1 is none."""
    if 0 <= files < FILES:
        yield Finding(
            about="open files",
            level="advice",
            found=f"A process may open {files} files.",
            matters=f"Hundreds of clients that wait for videos hold a connection each; {FILES} is enough for them.",
            do=f"Raise it with `ulimit -n {FILES}`, or LimitNOFILE in a systemd unit.",
        )
    else:
        yield good("open files", f"A process may open {'any number of' if files < 0 else files} files.")
    if 0 <= locked < SHM and cards > 1:
        yield Finding(
            about="locked memory",
            level="advice",
            found=f"A process may lock {locked >> 10} KiB of memory.",
            matters="NCCL pins host memory where cards do not reach each other; containers start with a low limit.",
            do="Start the container with --ulimit memlock=-1.",
        )


def check_disk(data: Path, usage: Usage) -> Iterator[Finding]:
    place = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    if not os.access(place, os.W_OK):
        yield Finding(
            about="disk",
            level="wrong",
            found=f"The data folder {data} cannot be written.",
            matters="Jobs, pictures and results are kept there.",
            do="Give the server another folder with --data, or make this one writable for its user.",
        )
        return
    _, free = usage(place)
    if free >= DISK_SCARCE:
        yield good("disk", f"The data folder {data} has {free / GIB:.0f} GiB free.")
        return
    yield Finding(
        about="disk",
        level="wrong" if free < DISK_LEAST else "advice",
        found=f"The data folder {data} has {free / GIB:.1f} GiB free.",
        matters="When it is full, no job is accepted and no result is kept.",
        do="Make room, lower --retention-s, or keep results in a bucket with --files.",
    )


def check_redis(
    find: Callable[[], Path], version: Callable[[Path], tuple[int, int]], redis_url: str | None
) -> Iterator[Finding]:
    """The Redis that a server would start; one elsewhere is only named."""
    if redis_url is not None:
        yield good("Redis", "A Redis elsewhere is used; `videoserve serve` checks what it promises when it starts.")
        return
    try:
        program = find()
        major, minor = version(program)
    except (RuntimeError, OSError, ValueError) as error:
        yield Finding(
            about="Redis",
            level="wrong",
            found=str(error),
            matters="The queue and the state of all jobs live in it.",
            do="Install redis-server, or name a running one with --redis-url.",
        )
        return
    if (major, minor) < OLDEST:
        yield Finding(
            about="Redis",
            level="wrong",
            found=f"{program} is version {major}.{minor}.",
            matters=f"The transitions of jobs need {OLDEST[0]}.{OLDEST[1]} or later.",
            do="Install a newer redis-server, or name a running one with --redis-url.",
        )
    else:
        yield good("Redis", f"{program}, version {major}.{minor}.")
