"""A box of cards without the cards: one network namespace a rank, two bridges, and shaped links between them."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PREFIX = "videoserve-"
# What the links are, beside their rates. Queues never overflow, so that nothing is lost and nothing sent twice. A burst
# passes an idle link at no cost: it is kept small beside the messages, and packets as the kernel hands them on smaller.
BURST, LIMIT, SEGMENT = "32kb", "64mb", 16384
# A sender that may run megabytes ahead of its link would call a message sent long before it is.
SOCKETS = (
    "net.ipv4.tcp_congestion_control=reno",
    "net.ipv4.tcp_slow_start_after_idle=0",
    "net.ipv4.tcp_wmem=4096 262144 262144",
    "net.ipv6.conf.all.disable_ipv6=1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Megabits a second each way: of every card's link, and of the trunk between the islands, 0 for no limit."""

    card: float
    trunk: float = 0.0


class EmulatedLinks:
    """`ranks` namespaces on two bridges, half of them on each; a context that takes everything away again.

    All of it lies in namespaces of its own, which are called after this process: nothing of the machine's network is
    touched, and what a killed run has left is found and taken away by the next.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.names = [f"{PREFIX}{os.getpid()}-rank{rank}" for rank in range(ranks)]
        self._switch = f"{PREFIX}{os.getpid()}-switch"

    def __enter__(self) -> Self:
        sweep()
        try:
            self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def shape(self, rates: Rates) -> None:
        """Gives the links these rates, both ends of each."""
        for name in self.names:
            tc(name, [qdisc("card", rates.card)])
        ports = [qdisc(f"port{rank}", rates.card) for rank in range(self.ranks)]
        tc(self._switch, [*ports, *(qdisc(end, rates.trunk) for end in ("trunk0", "trunk1"))])

    def sent_bytes(self) -> list[int]:
        """What each rank has put on its link since it was shaped, with all headers."""
        return [
            json.loads(run("tc", "-n", name, "-s", "-j", "qdisc", "show", "dev", "card"))[0]["bytes"]
            for name in self.names
        ]

    def remove(self) -> None:
        """Takes the namespaces away, and with them the links."""
        remove(f"{PREFIX}{os.getpid()}-")

    def _build(self) -> None:
        for name in (self._switch, *self.names):
            run("ip", "netns", "add", name)
        lines = ["link add island0 type bridge", "link add island1 type bridge"]
        lines += ["link add trunk0 type veth peer name trunk1"]
        for rank, name in enumerate(self.names):
            lines += [f"link add port{rank} type veth peer name card netns {name}"]
            lines += [f"link set port{rank} master island{2 * rank // self.ranks} up"]
        for island in (0, 1):
            lines += [f"link set trunk{island} master island{island} up", f"link set island{island} up"]
        batch("ip", self._switch, lines)
        for rank, name in enumerate(self.names):
            run("ip", "netns", "exec", name, "sysctl", "-qw", *SOCKETS)
            batch(
                "ip",
                name,
                [
                    f"link set card gso_max_size {SEGMENT}",
                    f"address add 10.77.0.{rank + 1}/24 dev card",
                    "link set card up",
                    "link set lo up",
                ],
            )


def why_not() -> str | None:
    """Why no box can be emulated here, in a sentence; None where one can."""
    missing = [program for program in ("ip", "tc", "sysctl") if shutil.which(program) is None]
    if os.geteuid() != 0:
        return "The emulated box needs root: it makes network namespaces and shapes their links."
    if missing:
        return f"The emulated box needs {' and '.join(missing)}: Debian's packages iproute2 and procps have them."
    try:
        with EmulatedLinks(1) as links:
            links.shape(Rates(card=100, trunk=100))
    except subprocess.CalledProcessError as error:
        return (
            f"This kernel or container allows no emulated box: {' '.join(error.cmd)!r} says {error.stderr.strip()!r}."
        )
    return None


def sweep() -> None:
    """Takes away the namespaces of runs that are dead."""
    for name in namespaces():
        owner = name.removeprefix(PREFIX).split("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove(f"{PREFIX}{owner}-")


def remove(prefix: str) -> None:
    for name in namespaces():
        if name.startswith(prefix):
            run("ip", "netns", "delete", name)


def namespaces() -> list[str]:
    listed: list[dict[str, Any]] = json.loads(run("ip", "-j", "netns", "list") or "[]")
    return [entry["name"] for entry in listed]


def qdisc(device: str, megabits: float) -> str:
    if not megabits:
        return f"qdisc replace dev {device} root pfifo limit 100000"
    return f"qdisc replace dev {device} root tbf rate {megabits}mbit burst {BURST} limit {LIMIT}"


def tc(namespace: str, lines: Sequence[str]) -> None:
    batch("tc", namespace, lines)


def batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    run(program, "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def run(*command: str, text: str = "") -> str:
    return subprocess.run(command, input=text, check=True, text=True, capture_output=True).stdout
