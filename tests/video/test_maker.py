"""Whose results are whose: another weight, another version of what computes, and nothing of the other is found."""

import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from videoserve.planning.identity import Maker
from videoserve.video import maker
from videoserve.video.digest import DigestMemo
from videoserve.video.engine import VideoEngine
from videoserve_kernels.triton_gate import installed

Described = Callable[..., Path]


@pytest.fixture(scope="module")
def maker_in(studio: Callable[..., Any]) -> Callable[[Path], Maker]:
    """maker_in(directory) -> the Maker of an engine that has loaded this model."""
    place = studio("wan21-i2v")

    def loaded(directory: Path) -> Maker:
        engine = VideoEngine(place.settings(device="cpu", batch=1), place.files, directory)
        engine.load(warm=False)
        memo = DigestMemo(place.data / "digests.json")
        found = maker.maker_of(engine.components, engine.environment, directory, memo)
        engine.close()
        return found

    return loaded


@pytest.fixture(scope="module")
def mine(described_model: Described, maker_in: Callable[[Path], Maker]) -> Maker:
    return maker_in(described_model("wan21-i2v"))


def changed(one: Maker, other: Maker) -> set[str]:
    return {field.name for field in fields(Maker) if getattr(one, field.name) != getattr(other, field.name)}


@pytest.mark.parametrize(
    ("part", "depends"),
    [
        ("transformer", {"guided", "plain"}),
        ("text_encoder", {"text", "guided", "plain"}),
        ("image_encoder", {"clip", "guided", "plain"}),
        ("vae", {"vae", "guided", "plain"}),
    ],
)
def test_one_weight_of_one_part(
    described_model: Described,
    maker_in: Callable[[Path], Maker],
    mine: Maker,
    tmp_path: Path,
    part: str,
    depends: set[str],
) -> None:
    shutil.copytree(described_model("wan21-i2v"), tmp_path / "tiny")
    file = next((tmp_path / "tiny" / part).glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-4] ^= 1
    file.write_bytes(content)
    assert changed(mine, maker_in(tmp_path / "tiny")) == depends


def test_the_same_weights_elsewhere_are_the_same(
    described_model: Described, maker_in: Callable[[Path], Maker], mine: Maker, tmp_path: Path
) -> None:
    shutil.copytree(described_model("wan21-i2v"), tmp_path / "tiny")
    assert changed(mine, maker_in(tmp_path / "tiny")) == set()


def test_another_version_of_what_computes_is_another_maker_of_everything(
    described_model: Described, maker_in: Callable[[Path], Maker], mine: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, everything = described_model("wan21-i2v"), {field.name for field in fields(Maker)}
    real = maker.version
    assert set(maker.KERNELS) == {"triton", "xformers"}
    for package in (*maker.CODECS, *filter(installed, maker.KERNELS)):
        with monkeypatch.context() as patch:
            patch.setattr(maker, "version", lambda name, other=package: "0" if name == other else real(name))
            assert changed(mine, maker_in(directory)) == everything
    monkeypatch.setattr(maker, "code_digest", lambda: "other")
    assert changed(mine, maker_in(directory)) == everything
