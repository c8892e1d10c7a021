"""A set of adapters as one chat model's forward adds it: low-rank changes of the matrices that it multiplies with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from videoserve_kernels.low_rank import add_low_rank
from videoserve_lora.slots import Slot


class Place(NamedTuple):
    """A matrix of a layer, under the name that the family's forward has for it."""

    layer: int
    matrix: str


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """`slots` of those matrices that change. One object for all sequences that have this set."""

    slots: Mapping[Place, Slot]

    @property
    def nbytes(self) -> int:
        return sum(slot.a.nbytes + slot.b.nbytes for slot in self.slots.values())


@dataclass(frozen=True, slots=True)
class Group:
    """Tokens of a batch that have one set of adapters: `rows` int64 of its T, or None for all of them."""

    adapted: Adapted
    rows: Tensor | None

    def add(self, place: Place, y: Tensor, x: Tensor) -> None:
        """Adds to the products y [T, O] of x [T, I] what the set adds to this matrix, in place, in its rows alone."""
        slot = self.adapted.slots.get(place)
        if slot is None:
            return
        if self.rows is None:
            add_low_rank(y, x.contiguous(), slot.a, slot.b)
            return
        own = y.index_select(0, self.rows)
        y.index_copy_(0, self.rows, add_low_rank(own, x.index_select(0, self.rows), slot.a, slot.b))
