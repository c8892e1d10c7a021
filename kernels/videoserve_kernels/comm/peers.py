"""Whether cards reach each other's memory, found out by a copy rather than believed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Bytes of a copy: several pages, and no round number of them.
COPIED = 2**20 + 4_097


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Two cards: whether the driver lets the first write to the second, and whether what is written arrives."""

    source: int
    target: int
    access: bool
    intact: bool


def try_peers(
    count: int, access: Callable[[int, int], bool], copy: Callable[[Tensor, int, int], Tensor]
) -> list[Peers]:
    """Every ordered pair of `count` cards: copy(x, source, target) takes a tensor there and back to the host.

    A copy goes through the host where there is no access, and has to be intact all the same.
    """
    found = []
    for source in range(count):
        for target in range(count):
            if source == target:
                continue
            sent = torch.arange(COPIED, dtype=torch.int64).add_(source * count + target).to(torch.uint8)
            intact = torch.equal(copy(sent, source, target), sent)
            found.append(Peers(source=source, target=target, access=access(source, target), intact=intact))
    return found


def peers() -> list[Peers]:
    """The pairs of the CUDA cards of this process; none where there are fewer than two cards."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return try_peers(count, torch.cuda.can_device_access_peer, copy_between_cards) if count > 1 else []


def copy_between_cards(x: Tensor, source: int, target: int) -> Tensor:
    """Host to source, source to target, target to host."""
    return x.to(f"cuda:{source}").to(f"cuda:{target}").cpu()


def addresses() -> list[str]:
    """The PCI address of each CUDA card, in the order in which this process numbers them."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [address(torch.cuda.get_device_properties(number)) for number in range(count)]


def address(card: Any) -> str:
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
