"""`videoserve lora` on a data folder, and what `generate --lora` reads."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from safetensors.numpy import load_file
from typer.testing import CliRunner

from tests.adapter_bytes import adapter, file, pair
from videoserve.cli import app
from videoserve.commands.generate import read_lora
from videoserve.config import Settings
from videoserve.local.adapters import LocalAdapters


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """run("ls", …) -> what `videoserve lora ls …` did on the test's data folder."""

    def command(*words: str | Path) -> Any:
        return CliRunner().invoke(app, ["lora", *map(str, words), "--data", str(tmp_path / "data")])

    return command


@pytest.fixture
def style(tmp_path: Path) -> Path:
    path = tmp_path / "style.safetensors"
    path.write_bytes(adapter())
    return path


def test_from_adding_to_removing(run: Any, style: Path) -> None:
    made = json.loads(run("add", style).stdout)
    assert (made["name"], made["version"], made["report"]["parts"]["any"]["modules"]) == ("style", 1, 1)
    # The adapters that come with the demo model are there too.
    names = [line.split()[0] for line in run("ls").stdout.splitlines()[1:]]
    assert set(names) == {"style", "swirl", "sepia-fade"}
    assert json.loads(run("show", "style@1").stdout) == made
    assert run("verify", "style").stdout == "style@1 is whole and fits demo.\n"
    assert run("verify", "swirl").exit_code == 0
    style.write_bytes(adapter(2))
    again = run("add", style)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "is taken by another adapter" in again.stderr
    assert json.loads(run("add", style, "--replace").stdout)["version"] == 2
    assert run("rm", "style").stdout == "style is removed.\n"
    gone = run("show", "style")
    assert (gone.exit_code, gone.stderr) == (2, "There is no adapter 'style'.\n")
    kept = run("rm", "swirl")
    assert kept.exit_code == 2
    assert "is everybody's" in kept.stderr


def test_a_file_that_does_not_fit_is_told_key_by_key(run: Any, tmp_path: Path) -> None:
    strange = tmp_path / "strange.safetensors"
    strange.write_bytes(file(pair() | pair("foo.bar")))
    refused = run("add", strange)
    assert refused.exit_code == 2
    assert "2 keys match no module of this model: foo.bar.lora_A.weight, foo.bar.lora_B.weight." in refused.stderr
    assert run("add", tmp_path / "none.safetensors").exit_code == 2


def test_a_data_folder_that_is_none_is_told_in_a_sentence(style: Path) -> None:
    for command in (["lora", "ls"], ["keys", "ls"], ["serve", "--port", "0"]):
        for place in (style, style / "within", Path("/proc/nope")):
            ended = CliRunner().invoke(app, [*command, "--data", str(place)])
            assert ended.exit_code == 2
            assert f"The data folder {place} cannot be used: " in ended.stderr


def test_a_name_with_a_slash_is_no_adapters(style: Path) -> None:
    ended = CliRunner().invoke(app, ["lora", "show", "a/b", "--server", "http://127.0.0.1:9"])
    assert (ended.exit_code, ended.stderr) == (2, "There is no adapter 'a/b': no name has a slash in it.\n")


def test_convert(run: Any, style: Path, tmp_path: Path) -> None:
    out, back = tmp_path / "out.safetensors", tmp_path / "back.safetensors"
    assert run("convert", style, out).exit_code == 0
    names = {f"transformer.blocks.0.attn1.to_q.lora_{half}.weight" for half in "AB"}
    assert set(load_file(out)) == names
    assert run("convert", out, back, "--layout", "comfyui").exit_code == 0
    ours, theirs = load_file(back), pair()
    assert set(ours) == set(theirs)
    assert all((ours[key] == theirs[key]).all() for key in theirs)
    assert run("add", style).exit_code == 0
    assert run("convert", "style", out).exit_code == 0
    assert set(load_file(out)) == names
    assert "is the file to read" in run("convert", style, style).stderr
    assert run("convert", style, tmp_path / "no" / "out").exit_code == 2
    assert "There is no adapter 'nothing'" in run("convert", "nothing", out).stderr


def test_a_file_is_there_for_one_video_and_a_named_adapter_stays(style: Path, tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", model="demo")
    with LocalAdapters(settings) as adapters:
        store = adapters.adapters.store
        ask = adapters.ask(str(style), 1.0)
        assert ask.digest is not None
        assert store.has(ask.digest)
    assert not store.has(ask.digest)
    with LocalAdapters(settings) as adapters:
        adapters.lora_add({"file": style}, {"name": "style"})
        assert adapters.ask(str(style), 1.0).digest == ask.digest
    assert store.has(ask.digest)


def test_an_adapter_and_its_weight_on_the_command_line(style: Path) -> None:
    assert read_lora("swirl") == ("swirl", 1.0)
    assert read_lora("swirl@2:0.5") == ("swirl@2", 0.5)
    assert read_lora(f"{style}:-1") == (str(style), -1.0)
    assert read_lora(str(style)) == (str(style), 1.0)
    with pytest.raises(typer.Exit):
        read_lora("swirl:heavy")
