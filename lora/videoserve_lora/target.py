"""The model an adapter is for: its real parameters, in which every name of a file is looked up."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from videoserve_lora.limits import Limits
from videoserve_lora.names import BLOCK, native, of_image
from videoserve_lora.tensor_file import TensorFile

Shape = tuple[int, ...]
EXPERTS = ("high", "low")
# The folders of a diffusers directory.
FOLDERS = {"high": "transformer", "low": "transformer_2"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A transformer's parameters by their names in diffusers, and whether there are two of it (high and low noise).

    `norms`, where they are known, are the Frobenius norms of the weights.
    """

    shapes: Mapping[str, Shape]
    two_experts: bool = False
    norms: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_directory(cls, model: Path) -> "Target":
        """Of a diffusers directory; reads the headers of its files only. FileNotFoundError; Refused."""
        return cls(
            shapes=shapes_of(model / FOLDERS["high"]), two_experts=(model / FOLDERS["low"] / "config.json").is_file()
        )

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> "Target":
        """What `json` gave."""
        shapes = {name: tuple(shape) for name, shape in told["shapes"].items()}
        return cls(shapes=shapes, two_experts=told["two_experts"], norms=told["norms"])

    def json(self) -> dict[str, Any]:
        return {"shapes": dict(self.shapes), "two_experts": self.two_experts, "norms": dict(self.norms)}

    @cached_property
    def places(self) -> frozenset[str]:
        """Modules, and tables that are parameters themselves."""
        return frozenset(place_of(name) for name in self.shapes)

    @cached_property
    def matrices(self) -> frozenset[str]:
        """Modules whose weight takes a low-rank change: linear ones and convolutions."""
        return frozenset(place for place in self.places if len(self.shapes.get(f"{place}.weight", ())) >= 2)

    @cached_property
    def named(self) -> Mapping[str, str]:
        """Places by their name in diffusers and by their native one."""
        return {**{native(place): place for place in self.places}, **{place: place for place in self.places}}

    @cached_property
    def underscored(self) -> Mapping[str, str]:
        """Places by either name with '_' for '.', as kohya's trainers write it."""
        return {name.replace(".", "_"): place for name, place in self.named.items()}

    @cached_property
    def reads_clip(self) -> bool:
        """Whether it has what reads a picture's CLIP embedding."""
        return any(of_image(place) for place in self.places)

    @cached_property
    def blocks(self) -> int:
        return 1 + max((int(found[1]) for place in self.places if (found := BLOCK.fullmatch(place))), default=-1)

    @property
    def width(self) -> int | None:
        """Channels of a token; None for a model that is no Wan."""
        shape = self.shapes.get("blocks.0.attn1.to_q.weight")
        return shape[1] if shape else None

    def matrix(self, place: str) -> tuple[int, int]:
        """Outputs and inputs of a module; a convolution's inputs are those of its whole window."""
        shape = self.shapes[f"{place}.weight"]
        return shape[0], math.prod(shape[1:])


def place_of(parameter: str) -> str:
    head, _, tail = parameter.rpartition(".")
    return head if tail in ("weight", "bias") else parameter


def shapes_of(folder: Path) -> dict[str, Shape]:
    """Names and shapes of the parameters in a folder of safetensors files."""
    index = sorted(folder.glob("*.safetensors.index.json"))
    if index:
        names = sorted(set(json.loads(index[0].read_text())["weight_map"].values()))
    else:
        names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    if not names:
        raise FileNotFoundError(f"{folder} has no safetensors files, so no adapter can be checked against it.")
    limits = Limits(file_bytes=1 << 40)
    shapes: dict[str, Shape] = {}
    for name in names:
        with TensorFile(folder / name, limits) as file:
            shapes |= {key: entry.shape for key, entry in file.entries.items()}
    return shapes
