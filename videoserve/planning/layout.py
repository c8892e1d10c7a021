"""Which of Wan's three image-to-video layouts a diffusers directory holds. Reads its JSON files only: no weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LayoutName = Literal["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
LastImage = Literal["never", "optional", "required"]


class UnknownLayoutError(ValueError):
    """The directory is not one of the three layouts; the message says what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What there is to know about a model before it is loaded, the same for plans and for the engine.

    `blocks` is how many each transformer has. `text_length` is the only text length the model takes, None when any is
    right. `last_image` says whether the last frame can be given as well. `boundary_ratio` is the share of the training
    timesteps from which on the high-noise expert works; None with a single expert. `clean_first_frame` means that the
    first latent frame is the image itself, at timestep 0, and never denoised.
    """

    name: LayoutName
    latent_channels: int
    input_channels: int
    spatial_factor: int
    temporal_factor: int
    patch: tuple[int, int, int]
    blocks: int
    text_length: int | None
    last_image: LastImage
    image_embeds: bool
    boundary_ratio: float | None
    clean_first_frame: bool

    @property
    def experts(self) -> int:
        """How many transformers there are."""
        return 1 if self.boundary_ratio is None else 2

    @property
    def size_multiple(self) -> int:
        """Height and width in pixels are multiples of this."""
        return self.spatial_factor * self.patch[1]

    def latent_shape(self, frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """[C, F, H, W] of the latents of a video; ValueError for a size that the model cannot make."""
        if frames < 1 or frames % self.temporal_factor != 1 % self.temporal_factor:
            raise ValueError(f"{frames} frames do not fit: this model makes {self.temporal_factor}·n + 1 frames.")
        if height < 1 or width < 1 or height % self.size_multiple or width % self.size_multiple:
            raise ValueError(f"{width}x{height} does not fit: both must be multiples of {self.size_multiple}.")
        latent_frames = (frames - 1) // self.temporal_factor + 1
        return self.latent_channels, latent_frames, height // self.spatial_factor, width // self.spatial_factor


def read_layout(directory: Path) -> Layout:
    """The layout of a diffusers directory; UnknownLayoutError when it is none of the three, or misses a file."""
    index = read_json(directory / "model_index.json")
    transformer = read_json(directory / "transformer" / "config.json")
    vae = read_json(directory / "vae" / "config.json")
    name = _name(index, transformer, vae)
    image_embeds = name == "wan21-i2v"
    return Layout(
        name=name,
        latent_channels=vae["z_dim"],
        input_channels=transformer["in_channels"],
        spatial_factor=vae.get("scale_factor_spatial", 8),
        temporal_factor=vae.get("scale_factor_temporal", 4),
        patch=tuple(transformer["patch_size"]),
        blocks=transformer["num_layers"],
        # The 2.1 attention tells image from text tokens by a fixed count of 512 text tokens.
        text_length=512 if image_embeds else None,
        last_image=_last_image(name, transformer),
        image_embeds=image_embeds,
        boundary_ratio=index.get("boundary_ratio"),
        clean_first_frame=name == "wan22-ti2v",
    )


def _last_image(name: LayoutName, transformer: dict[str, Any]) -> LastImage:
    if name == "wan21-i2v":
        # Position embeddings for two pictures: the first-and-last-frame model, which cannot do with one.
        return "required" if transformer.get("pos_embed_seq_len") is not None else "never"
    return "optional" if name == "wan22-a14b" else "never"


def _name(index: dict[str, Any], transformer: dict[str, Any], vae: dict[str, Any]) -> LayoutName:
    """The name that the three configurations agree on."""
    latent_channels = vae["z_dim"]
    channels = transformer["in_channels"]
    if index.get("expand_timesteps") and channels == latent_channels:
        return "wan22-ti2v"
    if channels == 2 * latent_channels + vae.get("scale_factor_temporal", 4):
        if transformer.get("image_dim") is not None and index.get("boundary_ratio") is None:
            return "wan21-i2v"
        if index.get("boundary_ratio") is not None and (index.get("transformer_2") or [None])[0] is not None:
            return "wan22-a14b"
    raise UnknownLayoutError(
        f"{index.get('_class_name')} with {channels} input channels over {latent_channels} latent channels is not an "
        "image-to-video layout of Wan: those are 2.1 I2V, 2.2 A14B and 2.2 TI2V."
    )


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object; UnknownLayoutError when the file is missing."""
    if not path.is_file():
        raise UnknownLayoutError(f"{path} is missing: a diffusers directory has it.")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
