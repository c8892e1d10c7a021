"""Made-up adapters of a tiny model, stored as uploads are."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from videoserve.types import LoraAsk
from videoserve_lora.apart import check_apart
from videoserve_lora.source import Source
from videoserve_lora.store import AdapterStore
from videoserve_lora.target import Target


class Shop:
    """Adapters of a studio's model, made up and stored as uploads are."""

    def __init__(self, place: Any, folder: Path) -> None:
        self.target = Target.of_directory(place.directory)
        self.store = AdapterStore(place.data / "adapters")
        self._folder = folder

    def add(self, seed: int, *, rank: int = 4, size: float = 0.3, expert: Any = None, extras: bool = False) -> str:
        """The digest of a new adapter on every matrix; with `extras` on norms, biases and tables as well."""
        generator = torch.Generator().manual_seed(seed)
        tensors: dict[str, Tensor] = {}
        for place in sorted(self.target.matrices):
            outputs, inputs = self.target.matrix(place)
            tensors[f"{place}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            tensors[f"{place}.lora_B.weight"] = size * torch.randn(outputs, rank, generator=generator) / rank**0.5
        if extras:
            for name in ("blocks.0.scale_shift_table", "blocks.1.attn1.norm_q.weight", "blocks.0.ffn.net.2.bias"):
                shape = self.target.shapes[name]
                name = name.removesuffix(".weight")
                key = f"{name.removesuffix('.bias')}.diff_b" if name.endswith("bias") else f"{name}.diff"
                tensors[key] = 0.1 * torch.randn(shape, generator=generator)
        file = self._folder / f"{seed}-{expert}.safetensors"
        save_file(tensors, file)
        out = self.store.temporary()
        verdict = check_apart([Source(path=file, expert=expert or None)], self.target, out)
        assert self.store.put(out) == verdict.digest
        return verdict.digest


def use(digest: str, scale: float = 1.0, parts: tuple[str, ...] = ("any",), **fields: Any) -> LoraAsk:
    return LoraAsk(**{"name": digest[:6], "digest": digest, "scale": scale, "parts": parts} | fields)
