"""Hosts read from sysfs trees: two sockets, switches, a flat one and one without cards."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from videoserve_kernels.comm.topology import islands_of, look

Write = Callable[..., Path]


def test_eight_cards_over_two_sockets(fake_host: Write) -> None:
    host = look(fake_host("two sockets"))
    assert len(host.cards) == 8
    assert host.numa_nodes == 2
    assert host.islands == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert host.nearness(0, 3) == "NODE"
    assert host.nearness(0, 4) == "SYS"
    first = host.cards[0]
    assert (first.address, first.model, first.numa) == ("0000:1f:00.0", "10de:2bb5", 0)
    assert first.bridges == ("pci0000:10", "0000:10:01.0")
    assert first.link is not None
    assert (first.link.width, first.link.width_max, first.link.speed_max) == (16, 16, 32.0)
    assert first.window == 128 * 2**30
    assert host.driver == "590.44.01"


def test_switches_make_islands_of_one_socket(fake_host: Write) -> None:
    host = look(fake_host("switches"))
    assert host.islands == host.switches == ((0, 1), (2, 3))
    assert host.nearness(0, 1) == "PIX"
    assert host.nearness(0, 2) == "NODE"


def test_a_switch_below_a_switch_is_further_away(fake_host: Write, tmp_path: Path) -> None:
    host = look(fake_host("switches"))
    below = host.cards[1]
    deep = replace(below, bridges=(*below.bridges, "0000:20:00.0", "0000:21:00.0"))
    assert replace(host, cards=(host.cards[0], deep)).nearness(0, 1) == "PXB"


def test_cards_on_root_ports_of_their_own_are_one_island(fake_host: Write) -> None:
    host = look(fake_host("flat"))
    assert host.islands == ((0, 1, 2, 3),)
    assert host.nearness(0, 3) == "PHB"
    assert [card.numa for card in host.cards] == [-1] * 4


def test_a_host_without_cards_has_a_fingerprint_all_the_same(fake_host: Write) -> None:
    host = look(fake_host("none"))
    assert (host.cards, host.islands, host.driver, host.iommu) == ((), (), None, "off")
    assert host.fingerprint != look(fake_host("none", board="Another")).fingerprint


def test_other_vendors_and_other_classes_are_no_cards(fake_host: Write) -> None:
    root = fake_host("flat")
    first, second = sorted((root / "sys/bus/pci/devices").glob("0000:0[12]:00.0"))
    (first / "vendor").write_text("0x1a03\n")
    # The sound function of a card, or its switch to NVLink.
    (second / "class").write_text("0x040300\n")
    assert [card.address for card in look(root).cards] == ["0000:03:00.0", "0000:04:00.0"]


@pytest.mark.parametrize("acs", [True, False, None])
def test_acs_of_the_bridges_above_a_card(fake_host: Write, acs: bool | None) -> None:
    assert [card.acs for card in look(fake_host("switches", acs=acs)).cards] == [acs] * 4


def test_one_redirecting_bridge_is_enough(fake_host: Write) -> None:
    root = fake_host("switches")
    other = fake_host("switches", acs=True)
    downstream = "0000:12:00.0"
    redirecting = (other / "sys/bus/pci/devices" / downstream / "config").read_bytes()
    (root / "sys/bus/pci/devices" / downstream / "config").write_bytes(redirecting)
    assert [card.acs for card in look(root).cards] == [True, False, False, False]


def test_a_chain_of_capabilities_that_bites_its_tail_ends(fake_host: Write) -> None:
    root = fake_host("flat")
    config = root / "sys/bus/pci/devices/0000:00:01.0/config"
    space = bytearray(config.read_bytes())
    space[0x100:0x104] = (0x0001 | 0x100 << 20).to_bytes(4, "little")
    config.write_bytes(space)
    assert look(root).cards[0].acs is False


@pytest.mark.parametrize(
    ("kind", "state"), [(None, "off"), ("identity", "passthrough"), ("DMA", "translating"), ("DMA-FQ", "translating")]
)
def test_the_iommu(fake_host: Write, kind: str | None, state: str) -> None:
    assert look(fake_host("flat", iommu=kind)).iommu == state


def test_a_link_that_is_down_runs_at_nothing_and_one_that_is_not_told_is_none(fake_host: Write) -> None:
    root = fake_host("flat")
    first, second = sorted((root / "sys/bus/pci/devices").glob("0000:0[12]:00.0"))
    (first / "current_link_speed").write_text("Unknown\n")
    (second / "max_link_width").unlink()
    (second / "resource").unlink()
    down, untold = (card.link for card in look(root).cards[:2])
    assert look(root).cards[1].window is None
    assert down is not None
    assert (down.speed, down.speed_max) == (0.0, 32.0)
    assert untold is None


def test_the_fingerprint_is_that_of_the_machine_and_not_of_the_moment(fake_host: Write) -> None:
    prints = {
        look(fake_host("two sockets", **fields)).fingerprint
        for fields in ({}, {"acs": True}, {"iommu": "DMA"}, {"driver": "595.1"}, {"board": "Another"})
    }
    assert len(prints) == 5
    root = fake_host("two sockets")
    before = look(root).fingerprint
    idle = root / "sys/bus/pci/devices/0000:1f:00.0/current_link_speed"
    idle.write_text("2.5 GT/s PCIe\n")
    assert look(root).fingerprint == before in prints


def test_the_islands_of_ranks_follow_the_cards_they_sit_on(fake_host: Write) -> None:
    host = look(fake_host("two sockets"))
    places = [card.address for card in host.cards]
    assert islands_of(host, places) == ((0, 1, 2, 3), (4, 5, 6, 7))
    turns = [places[index] for index in (0, 4, 1, 5)]
    assert islands_of(host, turns) == ((0, 2), (1, 3))
    assert islands_of(host, ["0000:ff:00.0", *places]) == ()


def test_ranks_on_other_cards_or_in_another_order_have_another_fingerprint(fake_host: Write) -> None:
    host = look(fake_host("two sockets"))
    places = [card.address for card in host.cards]
    assert len({host.fingerprint_for(order) for order in (places, places[::-1], places[:4], places[4:], [])}) == 5
    assert host.fingerprint_for(places) == host.fingerprint_for(tuple(places))


def test_this_machine_can_be_looked_at() -> None:
    host = look()
    assert host.numa_nodes >= 1
    assert sorted(number for island in host.islands for number in island) == list(range(len(host.cards)))
    assert host.fingerprint == look().fingerprint
