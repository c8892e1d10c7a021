"""An adapter that fits its model: changes of weights by module, and full deltas by parameter, for each expert."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from videoserve_lora.change import Change
from videoserve_lora.dtypes import Floats
from videoserve_lora.stored import Stored

# "any" is for whichever transformer it is bound to; "high" and "low" for one expert of two.
PartName = Literal["any", "high", "low"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """`changes` by module and `deltas` by parameter, under diffusers' names."""

    changes: Mapping[str, Change]
    deltas: Mapping[str, Stored]

    def delta(self, parameter: str) -> Floats | None:
        """The whole change of a parameter at weight 1, float32; None where there is none. A weight's is [O, I]."""
        full = self.full(parameter)
        if full is not None:
            return full
        change = self.changes.get(parameter.removesuffix(".weight"))
        if parameter.endswith(".weight") and change:
            return change.dense()
        change = self.changes.get(parameter.removesuffix(".bias"))
        if change and "b_bias" in change.tensors:
            return change.tensors["b_bias"].floats() * np.float32(change.factor)
        return None

    def full(self, parameter: str) -> Floats | None:
        """The full delta that the file itself has; None where it has none. A weight's is [O, I]."""
        stored = self.deltas.get(parameter)
        if stored is None:
            return None
        # A norm's weight is a vector, and a table is no weight.
        matrix = parameter.endswith(".weight") and len(stored.shape) > 1
        return stored.rows() if matrix else stored.floats()

    @property
    def parameters(self) -> tuple[str, ...]:
        """All that it changes, sorted."""
        biases = (f"{place}.bias" for place, change in self.changes.items() if "b_bias" in change.tensors)
        return tuple(sorted({*self.deltas, *biases, *(f"{place}.weight" for place in self.changes)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Parts by name: one "any", or "high", "low" or both. Its files are open as long as it is used."""

    parts: Mapping[PartName, Part]

    def part(self, expert: PartName) -> Part | None:
        """What is bound to that expert, or to the transformer of a model with one ("any"); None: nothing is."""
        return self.parts.get(expert, self.parts.get("any"))
