"""What a model directory says about itself, read from its JSON files alone: no weights, no torch."""

from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from videoserve.planning.layout import LastImage, LayoutName, read_json, read_layout

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
DEFAULTS: dict[LayoutName, Defaults] = {
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
    blocks            of each transformer
    sizes             (width, height) the model was trained for; empty: any of about `area` pixels
    text_length       tokens of prompt that the model reads, the end mark included
    boundary_ratio    share of the noise schedule below which the second expert works; None with one expert
    """

    name: str
    layout: LayoutName
    multiple: tuple[int, int]
    spatial_stride: int
    temporal_stride: int
    latent_channels: int
    blocks: int
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
        layout = read_layout(directory)
        own = read_json(directory / "videoserve.json") if (directory / "videoserve.json").exists() else {}
        name = own.get("name", directory.resolve().name)
        # Answers carry it in a header.
        if not (name and name.isascii() and name.isprintable()):
            raise ValueError(
                f"The model's name is {name!r}, which must be printable ASCII: name it in videoserve.json."
            )
        defaults = DEFAULTS[layout.name]
        _, patch_height, patch_width = layout.patch
        sizes = tuple((width, height) for width, height in own.get("sizes", ()))
        return cls(
            name=name,
            layout=layout.name,
            multiple=(layout.spatial_factor * patch_width, layout.spatial_factor * patch_height),
            spatial_stride=layout.spatial_factor,
            temporal_stride=layout.temporal_factor,
            latent_channels=layout.latent_channels,
            blocks=layout.blocks,
            sizes=sizes,
            area=sizes[0][0] * sizes[0][1] if sizes else defaults.area,
            num_frames=own.get("num_frames", defaults.num_frames),
            fps=own.get("fps", defaults.fps),
            steps=own.get("steps", defaults.steps),
            guidance=float(own.get("guidance", defaults.guidance)),
            text_length=layout.text_length or own.get("text_length", 512),
            experts=layout.experts,
            boundary_ratio=layout.boundary_ratio,
            last_image=layout.last_image,
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


def _tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ValueError(f"The model has no tokenizer/{path.name}, which counts the tokens of a prompt.")
    tokenizer = Tokenizer.from_file(str(path))
    # Counted uncut and unpadded, whatever the file was saved with.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
