"""Where each key of a file belongs: to a module's change, a parameter's delta, or what this model does not have."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from videoserve_lora.adapter import PartName
from videoserve_lora.faults import Faults
from videoserve_lora.key import Key
from videoserve_lora.names import of_image
from videoserve_lora.stored import Stored
from videoserve_lora.target import Target

Place = tuple[PartName, str]
# With dots, or as kohya's trainers write it.
BLOCK = re.compile(r"blocks[._](\d{1,6})[._]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Tensors by part and module and role; deltas by part and parameter; keys that may be left out, by their group."""

    changes: dict[Place, dict[str, Stored]] = field(default_factory=dict)
    deltas: dict[Place, Stored] = field(default_factory=dict)
    unused: dict[str, list[str]] = field(default_factory=dict)


class Sorting:
    """Takes keys one after the other; what fits nowhere becomes a fault."""

    def __init__(self, target: Target, faults: Faults) -> None:
        self.sorted = Sorted()
        self._target = target
        self._faults = faults

    def take(self, keys: Iterable[tuple[Key, PartName, Stored]]) -> None:
        for key, part, stored in keys:
            self._take(key, part, stored)

    def leave_out(self, group: str, keys: Iterable[str]) -> None:
        self.sorted.unused.setdefault(group, []).extend(keys)

    def _take(self, key: Key, part: PartName, stored: Stored) -> None:
        place = self._place(key)
        if place is None:
            self._unplaced(key)
        elif key.role is None:
            self._faults.add("are of no kind that is known here", [key.text])
        elif key.role == "dora":
            self._faults.add(
                "need the base's weights (DoRA), which is no addition to them and is not served", [key.text]
            )
        elif key.role.startswith("diff"):
            self._delta(key, part, place, stored)
        elif place not in self._target.matrices:
            self._faults.add("change a module that has no matrix", [key.text])
        else:
            self._change(key, (part, place), stored)

    def _place(self, key: Key) -> str | None:
        table = self._target.named
        name = key.name
        if key.family == "kohya":
            table, name = self._target.underscored, name.replace(".", "_")
        if key.role == "diff_m" and name not in table:
            name = f"{name}{'_' if key.family == 'kohya' else '.'}modulation"
        return table.get(name)

    def _unplaced(self, key: Key) -> None:
        block = BLOCK.match(key.name)
        if block and int(block[1]) >= self._target.blocks:
            self._faults.add(f"are for a block past this model's last, {self._target.blocks - 1}", [key.text])
        elif of_image(key.name) and not self._target.reads_clip:
            self.leave_out("image", [key.text])
        else:
            self._faults.add("match no module of this model", [key.text])

    def _delta(self, key: Key, part: PartName, place: str, stored: Stored) -> None:
        whole = place if place in self._target.shapes else f"{place}.weight"
        parameter = f"{place}.bias" if key.role == "diff_b" else whole
        shape = self._target.shapes.get(parameter)
        if shape is None:
            self._faults.add("change a parameter that this model does not have", [key.text])
        elif stored.shape != shape:
            self._faults.add(f"are {list(stored.shape)} for a parameter of {list(shape)}", [key.text])
        elif (part, parameter) in self.sorted.deltas:
            self._twice(key, self.sorted.deltas[part, parameter])
        else:
            self.sorted.deltas[part, parameter] = stored

    def _change(self, key: Key, place: Place, stored: Stored) -> None:
        assert key.role is not None, "a key without a role is a fault before"
        tensors = self.sorted.changes.setdefault(place, {})
        if key.role in tensors:
            self._twice(key, tensors[key.role])
        else:
            tensors[key.role] = stored

    def _twice(self, key: Key, first: Stored) -> None:
        self._faults.add("are for the same of one module", [first.key, key.text])
