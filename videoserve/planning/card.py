"""What a model directory says about itself, read from its JSON files alone: no weights, no torch."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

Layout = Literal["wan21-i2v", "wan22-a14b", "wan22-ti2v"]
LastImage = Literal["never", "optional", "required"]

DEMO = Path(__file__).parents[1] / "demo" / "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a layout uses when neither the client nor videoserve.json says otherwise; `area` in pixels."""

    area: int
    num_frames: int
    fps: int
    steps: int
    guidance: float


# Source: the settings that the authors of the models publish for each of them (generate.py and configs of Wan 2.1/2.2).
DEFAULTS: dict[Layout, Defaults] = {
    "wan21-i2v": Defaults(area=832 * 480, num_frames=81, fps=16, steps=40, guidance=5.0),
    "wan22-a14b": Defaults(area=832 * 480, num_frames=81, fps=16, steps=40, guidance=3.5),
    "wan22-ti2v": Defaults(area=1280 * 704, num_frames=121, fps=24, steps=50, guidance=5.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A model as plans see it.

    multiple          (width, height): sizes in pixels are multiples of these, VAE stride times patch
    spatial_stride    pixels per latent, both ways
    temporal_stride   frames per latent frame; frame counts are this times k plus 1
    sizes             (width, height) the model was trained for; empty: any of about `area` pixels
    text_length       tokens of prompt that the model reads, the end mark included
    boundary_ratio    share of the noise schedule below which the second expert works; None with one expert
    """

    name: str
    layout: Layout
    multiple: tuple[int, int]
    spatial_stride: int
    temporal_stride: int
    latent_channels: int
    sizes: tuple[tuple[int, int], ...]
    area: int
    num_frames: int
    fps: int
    steps: int
    guidance: float
    text_length: int
    experts: int
    boundary_ratio: float | None
    last_image: LastImage
    tokenizer: Tokenizer = field(repr=False)

    @classmethod
    def read(cls, directory: Path) -> "ModelCard":
        """The card of a diffusers directory; `videoserve.json` in it overrides the defaults of the layout.

        Raises ValueError, a sentence, for a directory that is none of the three layouts or misses a file, and for a
        name that is not printable ASCII.
        """
        index = _json(directory / "model_index.json")
        transformer = _json(directory / "transformer" / "config.json")
        vae = _json(directory / "vae" / "config.json")
        own = _json(directory / "videoserve.json") if (directory / "videoserve.json").exists() else {}
        layout = _layout(index, transformer, vae)
        name = own.get("name", directory.resolve().name)
        # Answers carry it in a header.
        if not (name and name.isascii() and name.isprintable()):
            raise ValueError(
                f"The model's name is {name!r}, which must be printable ASCII: name it in videoserve.json."
            )
        defaults = DEFAULTS[layout]
        # What diffusers' AutoencoderKLWan assumes where the file is silent.
        spatial = vae.get("scale_factor_spatial", 8)
        _, patch_height, patch_width = transformer["patch_size"]
        sizes = tuple((width, height) for width, height in own.get("sizes", ()))
        return cls(
            name=name,
            layout=layout,
            multiple=(spatial * patch_width, spatial * patch_height),
            spatial_stride=spatial,
            temporal_stride=vae.get("scale_factor_temporal", 4),
            latent_channels=vae["z_dim"],
            sizes=sizes,
            area=sizes[0][0] * sizes[0][1] if sizes else defaults.area,
            num_frames=own.get("num_frames", defaults.num_frames),
            fps=own.get("fps", defaults.fps),
            steps=own.get("steps", defaults.steps),
            guidance=float(own.get("guidance", defaults.guidance)),
            # The 2.1 attention tells picture tokens from text tokens by a fixed count of 512.
            text_length=512 if layout == "wan21-i2v" else own.get("text_length", 512),
            experts=2 if layout == "wan22-a14b" else 1,
            boundary_ratio=index.get("boundary_ratio"),
            last_image=_last_image(layout, transformer),
            tokenizer=_tokenizer(directory / "tokenizer" / "tokenizer.json"),
        )

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, already cleaned, as the text encoder would get it uncut: the end mark counts."""
        return len(self.tokenizer.encode(text).ids)


def resolve_model(model: str) -> Path:
    """The directory of "demo", the model inside the package, or of a path. Raises ValueError when it is none."""
    directory = DEMO if model == "demo" else Path(model)
    if not (directory / "model_index.json").is_file():
        raise ValueError(
            f"The model is {model!r}, which must be demo or a diffusers directory with a model_index.json."
        )
    return directory


def _layout(index: dict[str, Any], transformer: dict[str, Any], vae: dict[str, Any]) -> Layout:
    latents, channels = vae["z_dim"], transformer["in_channels"]
    two_experts = index.get("boundary_ratio") is not None
    if index.get("expand_timesteps") and channels == latents:
        return "wan22-ti2v"
    if channels == 2 * latents + vae.get("scale_factor_temporal", 4):
        if two_experts and index.get("transformer_2", [None])[0] is not None:
            return "wan22-a14b"
        if not two_experts and transformer.get("image_dim") is not None:
            return "wan21-i2v"
    raise ValueError(
        f"{index.get('_class_name')} with {channels} input channels over {latents} latent channels is no "
        f"image-to-video layout of Wan: those are 2.1 I2V, 2.2 A14B and 2.2 TI2V."
    )


def _last_image(layout: Layout, transformer: dict[str, Any]) -> LastImage:
    if layout == "wan21-i2v":
        # Position embeddings for two pictures: the first-and-last-frame model, which cannot do with one.
        return "required" if transformer.get("pos_embed_seq_len") is not None else "never"
    return "optional" if layout == "wan22-a14b" else "never"


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ValueError(f"The model has no tokenizer/{path.name}, which counts the tokens of a prompt.")
    tokenizer = Tokenizer.from_file(str(path))
    # Counted uncut and unpadded, whatever the file was saved with.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"The model directory has no {path.parent.name}/{path.name}; a diffusers directory has it.")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
