"""Several adapters of one job as numbers for the low-rank door: one padded pair of matrices a module."""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from videoserve_lora.adapter import Adapter, Part, PartName
from videoserve_lora.dtypes import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """An adapter by its digest, open, with the weight that a job gives it."""

    digest: str
    adapter: Adapter
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """a [R, I] and b [O, R]; what is past the adapters' own ranks is zero."""

    a: Tensor
    b: Tensor


class Slots:
    """The adapters that are bound to one transformer.

    Their factors stand one after the other in the order of their digests, so that the order in which a request names
    them changes no bit. The same one twice is one with the weights added; weight 0 is as if it were not there.
    """

    def __init__(
        self, uses: Sequence[Use], expert: PartName, *, rank: int | None = None, places: Set[str] | None = None
    ) -> None:
        """rank    what a slot can hold; where the sum is larger, the changes are full deltas. None: what is needed.
        places  the modules that take a slot; the changes of others are full deltas. None: all do.
        """
        self.expert = expert
        self._places = places
        self.rank = rank
        self._parts = bound(uses, expert)

    @property
    def digests(self) -> tuple[tuple[str, float], ...]:
        """What is bound, with its weight."""
        return tuple((digest, weight) for digest, _, weight in self._parts)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules that have a slot."""
        return tuple(sorted({place for _, part, _ in self._parts for place in part.changes if self._fits(place)}))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters that get a full delta."""
        slotted = {f"{place}.weight" for place in self.modules}
        given = {name for _, part, _ in self._parts for name in part.parameters}
        whole = {name for _, part, _ in self._parts for name in part.deltas}
        return tuple(sorted((given - slotted) | whole))

    @property
    def needed(self) -> int:
        """The rank of the largest slot."""
        return max((self._summed(place) or 0 for place in self.modules), default=0)

    def slot(self, place: str, dtype: torch.dtype = torch.float32) -> Slot:
        """The slot of a module, padded to the rank of all. B is scaled in float32 and rounded once."""
        factors = [
            (a, b * np.float32(weight))
            for _, part, weight in self._parts
            if (change := part.changes.get(place))
            for a, b in [change.factors()]
        ]
        a = np.concatenate([a for a, _ in factors])  # [R, I]
        b = np.concatenate([b for _, b in factors], axis=1)  # [O, R]
        room = (self.needed if self.rank is None else self.rank) - len(a)
        a, b = np.pad(a, ((0, room), (0, 0))), np.pad(b, ((0, 0), (0, room)))
        return Slot(a=torch.from_numpy(a).to(dtype), b=torch.from_numpy(b).to(dtype))

    def delta(self, parameter: str) -> Tensor:
        """What is added to one of `parameters` in full, float32; of a weight [O, I]."""
        slotted = parameter.removesuffix(".weight") in self.modules
        total: Floats | None = None
        for _, part, weight in self._parts:
            change = part.full(parameter) if slotted else part.delta(parameter)
            if change is not None:
                scaled = change * np.float32(weight)
                total = scaled if total is None else total + scaled
        assert total is not None, f"{parameter} gets no full delta"
        return torch.from_numpy(total)

    def _summed(self, place: str) -> int | None:
        """The ranks of a module's changes; None when one of them has no low-rank factors."""
        ranks = [change.low_rank for _, part, _ in self._parts if (change := part.changes.get(place))]
        return None if None in ranks else sum(rank for rank in ranks if rank is not None)

    def _fits(self, place: str) -> bool:
        if self._places is not None and place not in self._places:
            return False
        summed = self._summed(place)
        return summed is not None and (self.rank is None or summed <= self.rank)


def bound(uses: Sequence[Use], expert: PartName) -> list[tuple[str, Part, float]]:
    """Digest, part and weight of what changes anything in this expert, in the order of the digests."""
    weights: dict[str, float] = {}
    adapters = {use.digest: use.adapter for use in uses}
    for use in uses:
        weights[use.digest] = weights.get(use.digest, 0.0) + use.weight
    parts = [(digest, adapters[digest].part(expert), weights[digest]) for digest in sorted(weights)]
    return [(digest, part, weight) for digest, part, weight in parts if part and weight != 0]
