"""Layouts of diffusers directories, from their JSON files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from videoserve.planning.layout import UnknownLayoutError, read_layout

LAYOUTS = ["wan21-i2v", "wan22-a14b", "wan22-ti2v"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_read_from_its_directory(name: str, tiny_model_dir: Callable[[str], Path]) -> None:
    layout = read_layout(tiny_model_dir(name))
    assert layout.name == name
    assert layout.latent_channels == 16
    assert layout.input_channels == (16 if name == "wan22-ti2v" else 36)
    assert layout.experts == (2 if name == "wan22-a14b" else 1)
    assert layout.boundary_ratio == (0.875 if name == "wan22-a14b" else None)
    assert layout.text_length == (512 if name == "wan21-i2v" else None)
    assert layout.last_image == ("optional" if name == "wan22-a14b" else "never")
    assert layout.image_embeds == (name == "wan21-i2v")
    assert layout.clean_first_frame == (name == "wan22-ti2v")
    assert layout.size_multiple == 16
    assert layout.latent_shape(9, 32, 48) == (16, 3, 4, 6)


def test_the_demo_model_is_a_ti2v(demo_model_dir: Path) -> None:
    layout = read_layout(demo_model_dir)
    assert layout.name == "wan22-ti2v"
    assert layout.latent_shape(17, 128, 128) == (32, 5, 16, 16)


@pytest.mark.parametrize(
    ("frames", "height", "width", "sentence"),
    [
        (6, 32, 32, r"6 frames do not fit: this model makes 4·n \+ 1 frames"),
        (0, 32, 32, "0 frames do not fit"),
        (5, 40, 32, "32x40 does not fit: both must be multiples of 16"),
        (5, 32, 0, "0x32 does not fit"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(
    frames: int, height: int, width: int, sentence: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_layout(tiny_model_dir("wan22-ti2v")).latent_shape(frames, height, width)


def test_another_model_is_refused(tiny_model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir("wan22-ti2v"), model)
    index = json.loads((model / "model_index.json").read_text())
    (model / "model_index.json").write_text(json.dumps({**index, "expand_timesteps": False}))
    with pytest.raises(UnknownLayoutError, match="16 input channels over 16 latent channels is not an image-to-video"):
        read_layout(model)
    with pytest.raises(UnknownLayoutError, match=r"model_index\.json is missing"):
        read_layout(tmp_path)
