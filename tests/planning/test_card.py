"""Model cards of the demo model and of Wan's three layouts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from videoserve.planning.card import ModelCard, resolve_model


def test_demo(demo_model_dir: Path) -> None:
    card = ModelCard.read(demo_model_dir)
    assert (card.name, card.layout, card.experts) == ("demo", "wan22-ti2v", 1)
    assert (card.multiple, card.temporal_stride, card.latent_channels) == ((16, 16), 4, 32)
    assert (card.num_frames, card.fps, card.steps, card.guidance, card.text_length) == (17, 8, 20, 1.5, 64)
    assert card.sizes[0] == (128, 128)


@pytest.mark.parametrize(
    ("layout", "experts", "boundary", "last_image", "steps"),
    [
        ("wan21-i2v", 1, None, "never", 40),
        ("wan22-a14b", 2, 0.875, "optional", 40),
        ("wan22-ti2v", 1, None, "never", 50),
    ],
)
def test_layouts(
    tiny_model_dir: Callable[[str], Path],
    layout: str,
    experts: int,
    boundary: float | None,
    last_image: str,
    steps: int,
) -> None:
    directory = tiny_model_dir(layout)
    card = ModelCard.read(directory)
    assert (card.layout, card.experts, card.boundary_ratio, card.last_image) == (layout, experts, boundary, last_image)
    assert (card.name, card.steps, card.sizes) == (directory.name, steps, ())
    assert (card.multiple, card.temporal_stride, card.latent_channels, card.text_length) == ((16, 16), 4, 16, 512)


def test_tokens_are_counted_as_transformers_does(demo_model_dir: Path) -> None:
    card = ModelCard.read(demo_model_dir)
    theirs = AutoTokenizer.from_pretrained(demo_model_dir / "tokenizer")
    for text in ("", "the camera pans left", "镜头 🏃", "pan " * 900):
        assert card.count_tokens(text) == len(theirs(text).input_ids)


def test_sizes_of_a_first_and_last_frame_model(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    directory = _copy(tiny_model_dir("wan21-i2v"), tmp_path)
    config = json.loads((directory / "transformer" / "config.json").read_text())
    (directory / "transformer" / "config.json").write_text(json.dumps(config | {"pos_embed_seq_len": 10}))
    assert ModelCard.read(directory).last_image == "required"


def test_own_json_overrides(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    directory = _copy(tiny_model_dir("wan22-a14b"), tmp_path)
    own = {"name": "mine", "sizes": [[64, 32]], "num_frames": 9, "fps": 5, "steps": 3, "guidance": 2, "text_length": 99}
    (directory / "videoserve.json").write_text(json.dumps(own))
    card = ModelCard.read(directory)
    assert (card.name, card.sizes, card.area, card.num_frames) == ("mine", ((64, 32),), 2048, 9)
    assert (card.fps, card.steps, card.guidance, card.text_length) == (5, 3, 2.0, 99)


@pytest.mark.parametrize("name", ["模型", "café", "two\nlines", ""])
def test_names_that_no_header_can_carry_are_refused(
    tiny_model_dir: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    directory = _copy(tiny_model_dir("wan22-ti2v"), tmp_path)
    (directory / "videoserve.json").write_text(json.dumps({"name": name}))
    with pytest.raises(ValueError, match="must be printable ASCII") as refusal:
        ModelCard.read(directory)
    assert repr(name) in str(refusal.value)


def test_other_directories_are_refused(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be demo or a diffusers directory"):
        resolve_model(str(tmp_path))
    assert resolve_model("demo").name == "model"
    directory = _copy(tiny_model_dir("wan22-ti2v"), tmp_path / "t2v")
    index = json.loads((directory / "model_index.json").read_text())
    (directory / "model_index.json").write_text(json.dumps(index | {"expand_timesteps": False}))
    with pytest.raises(ValueError, match="is not an image-to-video layout"):
        ModelCard.read(directory)
    (directory / "vae" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"vae/config\.json is missing"):
        ModelCard.read(directory)


def _copy(directory: Path, to: Path) -> Path:
    shutil.copytree(directory, to / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    return to / "model"
