"""Directories that cannot be served are refused with a sentence that says why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from videoserve.text.load import load_model
from videoserve.text.shape import UnknownModelError


@pytest.fixture
def copied(chat_dir: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_dir("llama"), tmp_path / "copied"))


def refused(directory: Path, words: str) -> None:
    with pytest.raises(UnknownModelError, match=words):
        load_model(str(directory), device=torch.device("cpu"), dtype=torch.float32, int8=False)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_file_is_missing(copied: Path, name: str) -> None:
    (copied / name).unlink()
    refused(copied, f"copied has no .*{name.split('.')[1]}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; served are llama, qwen3, deepseek_v4"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; served is 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rotary embedding is 'yarn'"),
        ({"num_hidden_layers": 4}, "has no model.layers.3.self_attn.q_proj.weight"),
        ({"intermediate_size": 81}, r"gate_proj.weight is \[80, 48\]; it has to be \[81, 48\]"),
    ],
)
def test_a_configuration_that_is_not_served(copied: Path, fields: dict[str, Any], words: str) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | fields))
    refused(copied, words)


def test_several_files_are_one_model(copied: Path, chat_dir: Callable[[str], Path]) -> None:
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    names = sorted(weights)
    save_file({n: weights[n] for n in names[::2]}, copied / "model-1.safetensors")
    save_file({n: weights[n] for n in names[1::2]}, copied / "model-2.safetensors")
    load_model(str(copied), device=torch.device("cpu"), dtype=torch.float32, int8=False)


def test_a_quantised_checkpoint(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file(weights | {name: weights[name].to(torch.float8_e4m3fn)}, copied / "model.safetensors")
    refused(copied, f"{name} is float8_e4m3fn: quantised checkpoints are not served")


def test_another_configuration_is_another_model(copied: Path) -> None:
    def digest() -> str:
        return load_model(str(copied), device=torch.device("cpu"), dtype=torch.float32, int8=False).digest

    before = digest()
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.01}))
    assert digest() != before
