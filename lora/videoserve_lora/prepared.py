"""The adapters of a job for one transformer, as tensors that only have to be put in their places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve_lora.adapter import PartName
from videoserve_lora.slots import Slot, Slots, Use

# Ranks that slots are filled up to: few shapes, so that what is compiled for a shape is met again.
ROOM = (16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """`slots` by module and `deltas`, float32, by parameter, in host memory."""

    slots: Mapping[str, Slot]
    deltas: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        pairs = [(slot.a, slot.b) for slot in self.slots.values()]
        return sum(a.nbytes + b.nbytes for a, b in pairs) + sum(delta.nbytes for delta in self.deltas.values())


def prepare(
    uses: Sequence[Use], expert: PartName, places: Mapping[str, torch.dtype], *, pinned: bool = False
) -> Prepared:
    """For a transformer whose modules `places` take a slot of that type; everything else gets a full delta.

    ValueError, a sentence, for an adapter of which nothing is bound. `pinned`: a card copies them beside its work.
    """
    rank = room(Slots(uses, expert, places=places.keys()).needed)
    slots = Slots(uses, expert, places=places.keys(), rank=rank)
    found = {digest for digest, _ in slots.digests}
    for use in uses:
        if use.digest not in found:
            raise ValueError(f"The adapter {use.digest[:12]} changes nothing of this model's {expert} transformer.")
    made = {place: slots.slot(place, places[place]) for place in slots.modules}
    deltas = {name: slots.delta(name) for name in slots.parameters}
    if pinned:
        made = {place: Slot(a=slot.a.pin_memory(), b=slot.b.pin_memory()) for place, slot in made.items()}
        deltas = {name: delta.pin_memory() for name, delta in deltas.items()}
    return Prepared(slots=made, deltas=deltas)


def room(rank: int) -> int:
    """The next of ROOM, or the next multiple of its last."""
    return next((size for size in ROOM if rank <= size), -(-rank // ROOM[-1]) * ROOM[-1])
