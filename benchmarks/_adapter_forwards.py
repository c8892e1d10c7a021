"""Forwards of the demo model with two adapters of rank 32: by our slots, by peft in our forward, and by diffusers'."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from videoserve.config import Settings
from videoserve.local.adapters import LocalAdapters
from videoserve.planning.card import DEMO, ModelCard
from videoserve.storage.adapters import Offer
from videoserve.types import AdapterUse
from videoserve.video.bindings import Shelf
from videoserve.video.families.wan import WanTransformer
from videoserve.video.load import load_model
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_lora.source import Source

CARD = ModelCard.read(DEMO)
LARGEST = (*max(CARD.sizes, key=lambda size: size[0] * size[1]), CARD.num_frames)
RANK = 32
TOLERANCE = 1e-5
PLACES = (".to_q", ".to_k", ".to_v", ".to_out.0", ".ffn.net.0.proj", ".ffn.net.2")
CPU = torch.device("cpu")


class Forwards:
    """The same inputs through the demo model with the adapters a and b, in each way."""

    def __init__(self, data: Path) -> None:
        settings = Settings(data=data, model="demo")
        adapters = LocalAdapters(settings).adapters
        # One stays as it is, the other one is bound to.
        self._base, self._model = (
            load_model(DEMO, device=CPU, dtype=torch.float32, adapters=Shelf.of(settings)) for _ in range(2)
        )
        # One more for our forward: it lays weights out anew.
        self._plain, self._theirs, within = (load_theirs() for _ in range(3))
        self._uses: dict[str, AdapterUse] = {}
        for number, name in enumerate(("a", "b")):
            file = data / f"{name}.safetensors"
            save_file(drawn(self._plain, number), file)
            ask, _ = adapters.bring(Offer(name=name, sources=[Source(path=file)]), scale=1.0)
            assert ask.digest is not None
            self._uses[name] = AdapterUse(digest=ask.digest, weight=1.0)
            for module in (self._theirs, within):
                module.load_lora_adapter(load_file(file), prefix="transformer", adapter_name=name)
        for module in (self._theirs, within):
            module.set_adapters(["a", "b"])
        self._within = WanTransformer(within, clean_first_frame=True)
        generator = torch.Generator().manual_seed(0)
        width, height, frames = LARGEST
        config = self._plain.config
        size = (frames - 1) // CARD.temporal_stride + 1, height // CARD.spatial_stride, width // CARD.spatial_stride
        self._latents = torch.randn(1, config.in_channels, *size, generator=generator)
        self._texts = [torch.randn(count, config.text_dim, generator=generator) for count in (12, 1)]

    def bind(self, names: Sequence[str]) -> None:
        self._model.adapters.bind(0, [self._uses[name] for name in names])

    def forget(self) -> None:
        """What is ready in host memory: the next binding begins with the file."""
        self._model.adapters.forget()

    def ways(self) -> dict[str, Callable[[], Tensor]]:
        """By name. What the steps of a request share, its binding and its text, is done before."""
        self.bind(("a", "b"))
        return {
            "none": self._ours(self._base.experts[0]),
            "slots, rank 64": self._ours(self._model.experts[0]),
            "peft in our forward": self._ours(self._within),
            "diffusers": self._diffusers(self._plain),
            "peft": self._diffusers(self._theirs),
        }

    def check(self) -> None:
        """Ends the program when two ways that are to give the same do not."""
        found = {name: way() for name, way in self.ways().items()}
        for name, other in (("slots, rank 64", "peft"), ("peft in our forward", "peft"), ("none", "diffusers")):
            difference = float((found[name] - found[other]).abs().max() / found[other].abs().max())
            print(f"{name} and {other} differ by {difference:.1e} of the largest velocity")
            if difference > TOLERANCE:
                sys.exit("That is too much: no time is worth printing.")
        if (found["none"] - found["slots, rank 64"]).abs().max() < 1000 * TOLERANCE:
            sys.exit("The adapters change nothing: no time is worth printing.")
        self.bind(())
        if not torch.equal(self._ours(self._model.experts[0])(), found["none"]):
            sys.exit("The base is not what it was: no time is worth printing.")

    def _ours(self, expert: WanTransformer) -> Callable[[], Tensor]:
        context = expert.prepare_text(self._texts, CARD.text_length, branches=2)
        return lambda: expert.forward(self._latents, torch.tensor([811.0]), context, Mesh(ParallelPlan()))

    def _diffusers(self, module: Any) -> Callable[[], Tensor]:
        padded = torch.stack(
            [torch.nn.functional.pad(text, (0, 0, 0, CARD.text_length - len(text))) for text in self._texts]
        )
        tokens = torch.full(self._latents.shape[2:], 811.0)[:, ::2, ::2]
        tokens[0] = 0
        timesteps = tokens.flatten().expand(2, -1)
        latents = self._latents.expand(2, -1, -1, -1, -1)
        return lambda: cast(Tensor, module(latents, timesteps, padded, return_dict=False)[0])


def load_theirs() -> Any:
    return WanTransformer3DModel.from_pretrained(DEMO / "transformer", torch_dtype=torch.float32).eval()


def drawn(module: Any, seed: int) -> dict[str, Tensor]:
    """An adapter of the attentions and feed-forwards of all blocks, in diffusers' layout."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for place, child in module.named_modules():
        if place.endswith(PLACES):
            outputs, inputs = child.weight.shape
            tensors[f"transformer.{place}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) / inputs**0.5
            tensors[f"transformer.{place}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) / 50
    return tensors
