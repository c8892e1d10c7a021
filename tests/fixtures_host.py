"""Hosts made of files: the sysfs and procfs of machines with cards, as much of them as is read."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeCard:
    """A card below `bridges`: ports from the root port down, each an address on the bus of the host bridge `bus`."""

    address: str
    bus: str
    bridges: tuple[str, ...]
    numa: int = 0
    device: str = "0x2bb5"
    width: int = 16
    width_max: int = 16
    speed: float = 32.0
    speed_max: float = 32.0
    window: int = 128 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeHost:
    """What a host shows. `acs` None hides the extended configuration, as it is hidden from everybody but root."""

    cards: tuple[FakeCard, ...] = ()
    numa_nodes: int = 1
    acs: bool | None = False
    iommu: str | None = None
    driver: str | None = "590.44.01"
    board: str = "Test board"
    files: dict[str, str] = field(default_factory=dict)

    def write(self, root: Path) -> Path:
        """Writes the files below root and returns it."""
        bus = root / "sys/bus/pci/devices"
        bus.mkdir(parents=True)
        for node in range(self.numa_nodes):
            (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        put(root / "sys/devices/system/cpu/possible", "0-63")
        put(root / "sys/class/dmi/id/product_name", self.board)
        if self.driver:
            put(root / "sys/module/nvidia/version", self.driver)
        for number, card in enumerate(self.cards):
            self._write_card(root, card, number)
        for name, content in self.files.items():
            put(root / name, content)
        return root

    def _write_card(self, root: Path, card: FakeCard, number: int) -> None:
        place = root / "sys/devices" / f"pci{card.bus}"
        for bridge in card.bridges:
            place = place / bridge
            if not place.exists():
                put(place / "class", "0x060400")
                put(place / "vendor", "0x1000")
                (place / "config").write_bytes(configuration(self.acs))
                (root / "sys/bus/pci/devices" / bridge).symlink_to(place)
        place = place / card.address
        for name, value in {
            "class": "0x030000",
            "vendor": "0x10de",
            "device": card.device,
            "numa_node": str(card.numa),
            "current_link_width": str(card.width),
            "max_link_width": str(card.width_max),
            "current_link_speed": f"{card.speed} GT/s PCIe",
            "max_link_speed": f"{card.speed_max} GT/s PCIe",
            "resource": regions(card.window),
        }.items():
            put(place / name, value)
        (root / "sys/bus/pci/devices" / card.address).symlink_to(place)
        if self.iommu:
            group = root / f"sys/kernel/iommu_groups/{number}"
            put(group / "type", self.iommu)
            (place / "iommu_group").symlink_to(group)


def put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")


def configuration(acs: bool | None) -> bytes:
    """A bridge's configuration space: two extended capabilities, the second of them ACS."""
    if acs is None:
        return bytes(64)
    space = bytearray(0x200)
    # Advanced error reporting first, so that the chain has to be followed; request, completion and upstream redirect.
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x007F, 0x001D if acs else 0x0001)
    return bytes(space)


def regions(window: int) -> str:
    """Registers, nothing, and the window to the memory."""
    spans = [(0xA0000000, 0xA0FFFFFF), (0, 0), (0x20000000000, 0x20000000000 + window - 1)]
    return "\n".join(f"0x{first:016x} 0x{last:016x} 0x{int(last > 0) * 0x14220C:016x}" for first, last in spans)


def card(domain: int, numa: int, bridges: Sequence[str], **fields: object) -> FakeCard:
    return FakeCard(
        address=f"0000:{domain + 0xF:02x}:00.0",
        bus=f"0000:{domain:02x}",
        bridges=tuple(bridges),
        numa=numa,
        **fields,  # type: ignore[arg-type]
    )


def two_sockets() -> FakeHost:
    """Eight cards, each on a root port and host bridge of its own, four on either socket."""
    domains = [0x10, 0x30, 0x50, 0x70, 0x90, 0xB0, 0xD0, 0xE0]
    cards = [card(domain, number // 4, [f"0000:{domain:02x}:01.0"]) for number, domain in enumerate(domains)]
    return FakeHost(cards=tuple(cards), numa_nodes=2)


def switches() -> FakeHost:
    """Four cards on one socket, two below each of two switches."""
    cards = []
    for domain in (0x10, 0x50):
        port, upstream = f"0000:{domain:02x}:01.0", f"0000:{domain + 1:02x}:00.0"
        for slot in (0, 1):
            downstream = f"0000:{domain + 2:02x}:0{slot}.0"
            made = card(domain, 0, [port, upstream, downstream])
            cards.append(replace(made, address=f"0000:{domain + 3 + slot:02x}:00.0"))
    return FakeHost(cards=tuple(cards))


def flat() -> FakeHost:
    """Four cards on one socket whose firmware says nothing of nodes, all on root ports of one host bridge."""
    cards = [
        FakeCard(address=f"0000:0{slot}:00.0", bus="0000:00", bridges=(f"0000:00:0{slot}.0",), numa=-1)
        for slot in (1, 2, 3, 4)
    ]
    return FakeHost(cards=tuple(cards))


HOSTS: dict[str, Callable[[], FakeHost]] = {
    "two sockets": two_sockets,
    "switches": switches,
    "flat": flat,
    "none": lambda: FakeHost(driver=None),
}


@pytest.fixture
def fake_host(tmp_path: Path) -> Callable[..., Path]:
    """fake_host("two sockets", acs=True) -> the root of such a host, with fields of FakeHost changed."""

    def write(kind: str, **fields: object) -> Path:
        made = replace(HOSTS[kind](), **fields)  # type: ignore[arg-type]
        return made.write(tmp_path / f"host{len(list(tmp_path.glob('host*')))}")

    return write


@pytest.fixture
def fake_cards() -> Callable[[str], tuple[FakeCard, ...]]:
    """fake_cards("flat") -> the cards of such a host, to be changed and handed to fake_host."""
    return lambda kind: HOSTS[kind]().cards
