"""What a video asks of ranks, read from JSON files and from names; and boxes read from files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from videoserve.planning.links_file import read_box
from videoserve.planning.workload import PRESETS, Workload, choice_key, preset

BOX = {"cards": 4, "card": 50e9, "attention": 1e14, "linear": 2e14}


def named(name: str) -> Workload:
    made = preset(name, 2)
    assert made is not None
    return made


def test_wan_14b_has_the_tokens_and_bytes_that_are_known_of_it() -> None:
    small = named("wan-14b")
    assert small.tokens() == 32_760
    assert small.at((1280, 720), None, None).tokens() == 75_600
    # 16 channels of latents, 21 frames of 104 by 60, in float32.
    assert small.latent_bytes() == 16 * 21 * 104 * 60 * 4
    assert small.transformer.weight_bytes == pytest.approx(28e9, rel=0.02)
    assert named("wan-a14b").transformer.weight_bytes == pytest.approx(56e9, rel=0.02)
    assert named("wan-ti2v-5b").tokens() == 31 * 40 * 22
    assert named("wan-ti2v-5b").transformer.weight_bytes == pytest.approx(10e9, rel=0.1)
    assert preset("demo", 2) is None
    assert all(preset(name, 4) for name in PRESETS)


def test_the_demo_model_is_read_without_its_weights(demo_model_dir: Path, tmp_path: Path) -> None:
    for name in ("model_index.json", "videoserve.json", "transformer/config.json", "vae/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((demo_model_dir / name).read_text())
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/tokenizer.json").write_bytes((demo_model_dir / "tokenizer/tokenizer.json").read_bytes())
    work = Workload.read(tmp_path, 4)
    config = json.loads((demo_model_dir / "transformer/config.json").read_text())
    assert work.transformer.heads == config["num_attention_heads"]
    assert (work.width, work.height, work.frames, work.steps) == (128, 128, 17, 20)
    assert work.model(2, rates=read_rates(tmp_path)).layers == config["num_layers"]


def read_rates(folder: Path) -> object:
    (folder / "box.json").write_text(json.dumps(BOX))
    return read_box(folder / "box.json").rates


@pytest.mark.parametrize("layout", ["wan21-i2v", "wan22-a14b", "wan22-ti2v"])
def test_each_layout_has_the_tokens_that_its_transformer_sees(
    layout: str, tiny_model_dir: Callable[[str], Path]
) -> None:
    work = Workload.read(tiny_model_dir(layout), 4)
    assert work.tokens() > 0
    assert work.transformer.experts == (2 if layout == "wan22-a14b" else 1)


@pytest.mark.parametrize(
    ("size", "frames", "sentence"),
    [
        ((830, 480), None, "The size is 830x480; wan-14b makes multiples of 16x16"),
        ((0, 480), None, "The size is 0x480"),
        (None, 80, r"frames is 80; wan-14b makes 4k \+ 1 of them"),
    ],
)
def test_sizes_that_the_model_cannot_make_are_refused(
    size: tuple[int, int] | None, frames: int | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        named("wan-14b").at(size, frames, None)


def test_choices_are_told_apart_by_all_they_depend_on() -> None:
    keys = {
        choice_key(model, 64, height, 5, guided=guided, ranks=ranks, dtype=dtype, wire=wire)
        for model in ("a", "b")
        for height in (64, 32)
        for guided in (True, False)
        for ranks in (2, 8)
        for dtype in ("float32", "bfloat16")
        for wire in ("none", "int8")
    }
    assert len(keys) == 64


def write(folder: Path, content: str, name: str = "box.toml") -> Path:
    (folder / name).write_text(content)
    return folder / name


def test_a_box_in_toml_and_the_same_in_json(tmp_path: Path) -> None:
    lines = [f"{key} = {value}" for key, value in BOX.items()]
    lines += ['name = "mine"', "islands = [[0, 2], [1, 3]]", "trunk = 20e9", "collapse = 0.4", "memory = 24e9"]
    one = read_box(write(tmp_path, "\n".join([*lines, "latency_s = 1e-5"])))
    more = {"name": "mine", "islands": [[0, 2], [1, 3]], "trunk": 20e9, "collapse": 0.4, "memory": 24e9}
    assert one == read_box(write(tmp_path, json.dumps(BOX | more | {"latency_s": 1e-5}), "box.json"))
    assert (one.name, one.box.homes, one.box.trunk, one.card_bytes) == ("mine", (0, 1, 0, 1), 20e9, 24e9)


def test_what_a_box_leaves_out_has_no_limit(tmp_path: Path) -> None:
    box = read_box(write(tmp_path, json.dumps(BOX | {"islands": 2}), "two.json"))
    assert (box.name, box.box.homes, box.box.collapse, box.card_bytes) == ("two", (0, 0, 1, 1), 1.0, float("inf"))
    assert read_box(write(tmp_path, json.dumps(BOX), "one.json")).box.homes == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"trnk": 1.0}, "says trnk, which describes no box; the nearest word is trunk"),
        ({"card": "fast"}, "card is 'fast' in box.json; a number is allowed"),
        ({"islands": 3}, "islands is 3 in box.json; lists that have each of the cards 0 to 3 once, or a divisor of 4"),
        ({"islands": [[0, 1], [1, 2, 3]]}, "lists that have each"),
        ({"islands": [[0, 1]]}, "lists that have each"),
        ({"collapse": 1.5}, "collapse is 1.5; more than 0"),
        ({"card": -1.0}, "rates above 0"),
    ],
    ids=str,
)
def test_a_box_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_box(write(tmp_path, json.dumps(BOX | wrong), "box.json"))


def test_files_that_are_no_boxes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not say attention, linear; a box needs cards, card, attention, linear"):
        read_box(write(tmp_path, "cards = 2\ncard = 1.0"))
    with pytest.raises(ValueError, match="is not TOML"):
        read_box(write(tmp_path, "cards: 2"))
    with pytest.raises(ValueError, match="is not JSON"):
        read_box(write(tmp_path, "cards = 2", "box.json"))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_box(tmp_path / "nowhere.toml")
    with pytest.raises(ValueError, match="a table of words and numbers is allowed"):
        read_box(write(tmp_path, "[1]", "box.json"))
