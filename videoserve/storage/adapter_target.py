"""The model that adapters are checked against: the shapes of its parameters, and their norms."""

import hashlib
import json
from functools import cached_property
from pathlib import Path

from videoserve.errors import BadAdapter
from videoserve_kernels.kept_json import read_json, write_json
from videoserve_lora.canonical import opened
from videoserve_lora.norms import norms_of
from videoserve_lora.refused import listed
from videoserve_lora.target import Target


class AdapterTarget:
    """Of a diffusers directory; read when first asked for. Reading norms takes all bytes of a transformer once, and
    what was found is kept in the folder `kept`."""

    def __init__(self, model: Path, name: str, kept: Path):
        self.name = name
        self._model = model
        self._kept = kept

    @cached_property
    def target(self) -> Target:
        """Raises BadAdapter, a sentence, for a model that adapters cannot be checked against."""
        try:
            return Target.of_directory(self._model)
        except FileNotFoundError:
            raise BadAdapter(
                f"The model {self.name} has no safetensors files, so no adapter can be checked against it."
            ) from None

    @cached_property
    def measured(self) -> Target:
        """The same with the norms of its weights."""
        place = self._kept / f"{self._weights()}.json"
        norms = read_json(place)
        if norms is None:
            norms = norms_of(self._model)
            write_json(place, norms)
        return Target(shapes=self.target.shapes, two_experts=self.target.two_experts, norms=norms)

    @cached_property
    def digest(self) -> str:
        """Equal for models that the same adapters fit."""
        told = {"shapes": self.target.shapes, "two_experts": self.target.two_experts}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def admit(self, file: Path) -> None:
        """Raises BadAdapter for a checked adapter of a kind that this model cannot be given."""

    def check(self, file: Path) -> None:
        """Raises BadAdapter for a stored adapter that does not fit, with what in it does not."""
        wrong: list[str] = []
        with opened(file) as adapter:
            for name, part in adapter.parts.items():
                if name != "any" and not self.target.two_experts:
                    wrong.append(name)
                for place, change in part.changes.items():
                    if place not in self.target.matrices or self.target.matrix(place) != change.shape:
                        wrong.append(place)
                wrong += [parameter for parameter in part.deltas if parameter not in self.target.shapes]
        if wrong:
            raise BadAdapter(f"The adapter does not fit the model {self.name}: {listed(wrong)}.", wrong)

    def _weights(self) -> str:
        """Other weights, another text; files are told apart by size and time."""
        files = sorted((self._model / "transformer").glob("*.safetensors"))
        told = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        return hashlib.sha256(repr((str(self._model), told)).encode()).hexdigest()[:32]
