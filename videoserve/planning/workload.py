"""What a video asks of the ranks that share it: the transformer's shape and the tokens of a size. No weights."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from videoserve.planning.card import DEFAULTS, ModelCard
from videoserve_kernels.comm.forecast import Model
from videoserve_kernels.comm.transformer import WAN_14B, Rates, Transformer

# Text keys beside which the 2.1 image-to-video model attends to the tokens of its picture.
PICTURE_TOKENS = 257
# Latents travel in float32.
LATENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A transformer and what turns a size into its tokens: pixels and frames a token, and frames a latent frame.

    `channels` are those of the latents. width, height, frames and steps are what a request gets that asks for nothing.
    """

    name: str
    transformer: Transformer
    multiple: tuple[int, int]
    temporal_stride: int
    channels: int
    width: int
    height: int
    frames: int
    steps: int

    def tokens(self) -> int:
        """Tokens of self-attention."""
        across, down = self.multiple
        return self.latent_frames() * (self.width // across) * (self.height // down)

    def latent_frames(self) -> int:
        return (self.frames - 1) // self.temporal_stride + 1

    def latent_bytes(self) -> float:
        """What the leader sends to each rank before a step. A token is a patch of two by two latents."""
        return self.tokens() * 4 * self.channels * LATENT_BYTES

    def model(self, branches: int, rates: Rates) -> Model:
        """What the forecast needs."""
        return self.transformer.model(self.tokens(), branches, rates, self.latent_bytes())

    def at(self, size: tuple[int, int] | None, frames: int | None, steps: int | None) -> "Workload":
        """The same model at another size; ValueError names what a size or a number of frames has to be."""
        width, height = size or (self.width, self.height)
        frames, (across, down) = frames or self.frames, self.multiple
        if width % across or height % down or min(width, height) < 1:
            raise ValueError(f"The size is {width}x{height}; {self.name} makes multiples of {across}x{down}.")
        if frames < 1 or (frames - 1) % self.temporal_stride:
            raise ValueError(f"frames is {frames}; {self.name} makes {self.temporal_stride}k + 1 of them.")
        return replace(self, width=width, height=height, frames=frames, steps=steps or self.steps)

    @classmethod
    def read(cls, directory: Path, itemsize: int) -> "Workload":
        """That of a diffusers directory whose values have `itemsize` bytes; ValueError as in ModelCard.read."""
        card = ModelCard.read(directory)
        config: dict[str, Any] = json.loads((directory / "transformer" / "config.json").read_text(encoding="utf-8"))
        picture = PICTURE_TOKENS if config.get("image_dim") is not None else 0
        width, height = card.sizes[0] if card.sizes else widest(card)
        return cls(
            name=card.name,
            transformer=Transformer(
                heads=config["num_attention_heads"],
                channels=config["attention_head_dim"],
                layers=config["num_layers"],
                feed_forward=config["ffn_dim"],
                text=card.text_length + picture,
                itemsize=itemsize,
                experts=card.experts,
            ),
            multiple=card.multiple,
            temporal_stride=card.temporal_stride,
            channels=card.latent_channels,
            width=width,
            height=height,
            frames=card.num_frames,
            steps=card.steps,
        )


def widest(card: ModelCard) -> tuple[int, int]:
    """A size of 16 to 9 for a model that has none of its own: the largest within its area."""
    across, down = card.multiple
    width = int((card.area * 16 / 9) ** 0.5) // across * across
    return width, int(card.area / width) // down * down


def choice_key(
    model: str, width: int, height: int, frames: int, *, guided: bool, ranks: int, dtype: str, wire: str
) -> str:
    """The key under which a choice of plan is kept: whatever changes which plan is the fastest on one host."""
    return f"{model}:{width}x{height}x{frames}:g{int(guided)}:{ranks}:{dtype}:{wire}"


def preset(name: str, itemsize: int) -> Workload | None:
    """A model by its name, for those who do not have it yet: "wan-14b", "wan-a14b" or "wan-ti2v-5b"; None otherwise.

    Source: the configurations that the authors publish.
    """
    if name == "wan-ti2v-5b":
        defaults = DEFAULTS["wan22-ti2v"]
        small = Transformer(heads=24, channels=128, layers=30, feed_forward=14_336, text=512, itemsize=itemsize)
        return Workload(
            name=name,
            transformer=small,
            multiple=(32, 32),
            temporal_stride=4,
            channels=48,
            width=1280,
            height=704,
            frames=defaults.num_frames,
            steps=defaults.steps,
        )
    if name not in ("wan-14b", "wan-a14b"):
        return None
    defaults = DEFAULTS["wan21-i2v" if name == "wan-14b" else "wan22-a14b"]
    experts, text = (1, 512 + PICTURE_TOKENS) if name == "wan-14b" else (2, 512)
    return Workload(
        name=name,
        transformer=replace(WAN_14B, experts=experts, text=text, itemsize=itemsize),
        multiple=(16, 16),
        temporal_stride=4,
        channels=16,
        width=832,
        height=480,
        frames=defaults.num_frames,
        steps=defaults.steps,
    )


PRESETS = ("wan-14b", "wan-a14b", "wan-ti2v-5b")
