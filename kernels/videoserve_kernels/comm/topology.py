"""What a host is made of, as sysfs tells it: cards, the switches and sockets they hang on, ACS and IOMMU. No torch."""

import hashlib
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

NVIDIA = "0x10de"
# PCI classes of what computes: VGA and 3D controllers.
DISPLAY = ("0x0300", "0x0302")
HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
ACS_CAPABILITY = 0x000D
# Request redirect, completion redirect and upstream forwarding: what sends a peer's traffic up to the root port.
ACS_REDIRECT = 0b11100

Iommu = Literal["off", "passthrough", "translating"]
# How near two cards are, in the words of NCCL_P2P_LEVEL and of nvidia-smi, the nearest first.
Nearness = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]
# Which cards belong together, each part in order: numbers of cards, or of the ranks on them.
Islands = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PciLink:
    """The link of a card: lanes and GT/s, as they are now and at most."""

    width: int
    speed: float
    width_max: int
    speed_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card at a PCI address. `bridges` are its host bridge, root port and switch ports, from the top.

    `model` is vendor:device in hexadecimal, `numa` the node or -1 where the firmware does not say; `acs` whether a
    bridge above it redirects what goes from peer to peer, None where its configuration may not be read; `window` the
    bytes of its memory that others can address at once, the largest of its PCI regions. `link` and `window` are None
    where sysfs does not tell.
    """

    address: str
    model: str
    numa: int
    bridges: tuple[str, ...]
    acs: bool | None
    window: int | None
    link: PciLink | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: its cards by address, NUMA nodes, processors, IOMMU, and the version of the cards' driver."""

    cards: tuple[Card, ...]
    numa_nodes: int
    processors: str
    board: str
    iommu: Iommu
    driver: str | None

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with everything a measurement of the links may depend on.

        What the links run at now is not in it: they idle at lower speeds.
        """
        told = asdict(self)
        for card in told["cards"]:
            if card["link"]:
                del card["link"]["width"], card["link"]["speed"]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    def fingerprint_for(self, places: Sequence[str]) -> str:
        """The fingerprint of ranks that sit on the cards at these PCI addresses, in this order; none without cards."""
        return hashlib.sha256(" ".join((self.fingerprint, *places)).encode()).hexdigest()[:16]

    def nearness(self, one: int, other: int) -> Nearness:
        """What is between two cards: a switch, several, a host bridge, a socket, or the way between sockets."""
        here, there = self.cards[one], self.cards[other]
        shared = 0
        for mine, theirs in zip(here.bridges, there.bridges, strict=False):
            if mine != theirs:
                break
            shared += 1
        if shared >= 2:
            # Below a root port every switch is an upstream port and downstream ones: two bridges a switch.
            apart = max(len(here.bridges), len(there.bridges)) - shared
            return "PIX" if apart <= 1 else "PXB"
        if shared == 1:
            return "PHB"
        return "NODE" if here.numa == there.numa else "SYS"

    @property
    def islands(self) -> Islands:
        """The coarsest parts that cards fall into: sockets where there are several, else switches, else the whole.

        Numbers of cards, each part in order. A card that shares a switch with nobody makes switches no parts.
        """
        sockets = grouped(range(len(self.cards)), lambda number: self.cards[number].numa)
        if len(sockets) > 1:
            return sockets
        switches = self.switches
        return switches if len(switches) > 1 and all(len(part) > 1 for part in switches) else sockets

    @property
    def switches(self) -> Islands:
        """The cards below each root port: more than one where a switch is between."""
        return grouped(range(len(self.cards)), lambda number: self.cards[number].bridges[:2])


def islands_of(host: Host, places: Sequence[str]) -> Islands:
    """The islands in numbers of ranks, rank i on the card at the PCI address places[i]; none for an unknown address."""
    at = {card.address: number for number, card in enumerate(host.cards)}
    home = {card: island for island, cards in enumerate(host.islands) for card in cards}
    if not all(place in at for place in places):
        return ()
    return grouped(range(len(places)), lambda rank: home[at[places[rank]]])


def grouped(numbers: Sequence[int], key: Callable[[int], Hashable]) -> Islands:
    """The numbers that share a key, in the order in which the keys first appear."""
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        groups.setdefault(key(number), []).append(number)
    return tuple(tuple(group) for group in groups.values())


def look(root: Path = Path("/")) -> Host:
    """The host whose sysfs is at root/sys; one without NVIDIA cards has none."""
    sys = root / "sys"
    devices = sorted((sys / "bus/pci/devices").glob("*"))
    cards = tuple(read_card(device) for device in devices if is_card(device))
    nodes = len(list((sys / "devices/system/node").glob("node[0-9]*")))
    return Host(
        cards=cards,
        numa_nodes=max(nodes, 1),
        processors=text(sys / "devices/system/cpu/possible") or "",
        board=text(sys / "class/dmi/id/product_name") or "",
        iommu=iommu_state(sys, [device for device in devices if is_card(device)]),
        driver=text(sys / "module/nvidia/version"),
    )


def is_card(device: Path) -> bool:
    return text(device / "vendor") == NVIDIA and (text(device / "class") or "")[:6] in DISPLAY


def read_card(device: Path) -> Card:
    real = device.resolve()
    start = next(index for index, part in enumerate(real.parts) if HOST_BRIDGE.fullmatch(part))
    bridges = real.parts[start:-1]
    above = [Path(*real.parts[: start + 2 + depth]) for depth in range(len(bridges) - 1)]
    states = [redirects(bridge / "config") for bridge in above]
    return Card(
        address=device.name,
        model=f"{(text(device / 'vendor') or '')[2:]}:{(text(device / 'device') or '')[2:]}",
        numa=int(text(device / "numa_node") or -1),
        bridges=bridges,
        acs=None if None in states else True in states,
        window=read_window(device),
        link=read_link(device),
    )


def read_window(device: Path) -> int | None:
    """The largest region: lines of first address, last address and flags, zeros where there is none."""
    regions = [[int(word, 16) for word in line.split()[:2]] for line in (text(device / "resource") or "").splitlines()]
    return max((last - first + 1 for first, last in regions if last > first), default=None)


def read_link(device: Path) -> PciLink | None:
    names = ("current_link_width", "current_link_speed", "max_link_width", "max_link_speed")
    told = [text(device / name) for name in names]
    if None in told:
        return None
    # "16.0 GT/s PCIe"; "Unknown" for a link that is down.
    width, speed, width_max, speed_max = (
        float(value.split()[0]) if value and value[0].isdigit() else 0.0 for value in told
    )
    return PciLink(width=int(width), speed=speed, width_max=int(width_max), speed_max=speed_max)


def redirects(config: Path) -> bool | None:
    """Whether a bridge's ACS sends peer traffic to its root port; None when its extended configuration is hidden.

    Only root may read it beyond the first 64 bytes. False for a bridge that has no such capability.
    """
    space = config.read_bytes() if config.exists() else b""
    if len(space) <= 0x100:
        return None
    # Extended capabilities are a chain: identity in the low 16 bits, the next one's place in the high 12.
    place, seen = 0x100, set[int]()
    while place and place not in seen and place + 8 <= len(space):
        seen.add(place)
        (header,) = struct.unpack_from("<I", space, place)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", space, place + 6)
            return bool(control & ACS_REDIRECT)
        place = header >> 20 & 0xFFC
    return False


def iommu_state(sys: Path, cards: Sequence[Path]) -> Iommu:
    """Off without groups; passthrough when each card's group maps addresses to themselves (iommu=pt)."""
    if not any((sys / "kernel/iommu_groups").glob("*")):
        return "off"
    kinds = Counter(text(card / "iommu_group" / "type") for card in cards)
    return "passthrough" if set(kinds) <= {"identity"} and cards else "translating"


def text(path: Path) -> str | None:
    """The content of a small file, None when it is not there or nobody answers for it."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
