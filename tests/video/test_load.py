"""What is missing from a model directory is said; what is there is identified by its contents."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from videoserve.planning.layout import UnknownLayoutError
from videoserve.video import digest
from videoserve.video.digest import DigestMemo, config_digest, model_digest
from videoserve.video.environment import describe
from videoserve.video.leader import Leader
from videoserve.video.load import Components, IncompleteModelError, load_components
from videoserve_kernels.device import DeviceUnavailableError, pick_device, pick_dtype

CPU = torch.device("cpu")


def load(directory: Path) -> Components:
    return load_components(
        directory, device=CPU, dtype=torch.float32, memo=DigestMemo(None), ranks=Leader(None, device=CPU)
    )


@pytest.fixture
def copy(described_model: Callable[..., Path], tmp_path: Path) -> Callable[[str], Path]:
    """copy(layout): a tiny directory to tamper with."""
    return lambda layout: Path(shutil.copytree(described_model(layout), tmp_path / "model"))


@pytest.mark.parametrize(
    ("layout", "experts", "clip"), [("wan21-i2v", 1, True), ("wan22-a14b", 2, False), ("wan22-ti2v", 1, False)]
)
def test_parts(described_model: Callable[..., Path], layout: str, experts: int, clip: bool) -> None:
    components = load(described_model(layout))
    assert components.layout.name == layout
    assert len(components.experts) == experts
    assert (components.image_encoder is not None, components.image_processor is not None) == (clip, clip)
    modules = [components.text_encoder, components.vae.module, *(expert.module for expert in components.experts)]
    assert not any(module.training for module in modules)
    assert not any(parameter.requires_grad for module in modules for parameter in module.parameters())


@pytest.mark.parametrize(
    ("layout", "gone"),
    [
        ("wan22-ti2v", "transformer/diffusion_pytorch_model.safetensors"),
        ("wan22-a14b", "transformer_2/config.json"),
        ("wan22-ti2v", "text_encoder/model.safetensors"),
        ("wan22-ti2v", "tokenizer/tokenizer_config.json"),
        ("wan22-ti2v", "scheduler/scheduler_config.json"),
        ("wan21-i2v", "image_encoder/model.safetensors"),
        ("wan21-i2v", "image_processor/preprocessor_config.json"),
    ],
)
def test_a_missing_part_is_named(copy: Callable[[str], Path], layout: str, gone: str) -> None:
    directory = copy(layout)
    (directory / gone).unlink()
    with pytest.raises(IncompleteModelError) as caught:
        load(directory)
    part, _, file = gone.partition("/")
    assert f"no {part}/{'*.safetensors' if file.endswith('safetensors') else file}" in str(caught.value)


def test_a_missing_shard_is_named(copy: Callable[[str], Path]) -> None:
    directory = copy("wan22-ti2v")
    index = {"weight_map": {"a": "diffusion_pytorch_model.safetensors", "b": "second.safetensors"}}
    (directory / "vae" / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(IncompleteModelError, match=r"no vae/second\.safetensors"):
        load(directory)


def test_no_model_at_all(tmp_path: Path) -> None:
    with pytest.raises(UnknownLayoutError, match=r"model_index\.json is missing"):
        load(tmp_path)


def test_the_digest_is_over_contents(copy: Callable[[str], Path], tmp_path: Path) -> None:
    directory = copy("wan22-ti2v")
    first = model_digest(directory, DigestMemo(None))
    elsewhere = Path(shutil.copytree(directory, tmp_path / "elsewhere"))
    assert model_digest(elsewhere, DigestMemo(None)) == first
    weights = elsewhere / "vae" / "diffusion_pytorch_model.safetensors"
    blob = bytearray(weights.read_bytes())
    blob[-1] ^= 1
    weights.write_bytes(blob)
    assert model_digest(elsewhere, DigestMemo(None)) != first
    weights.unlink()
    assert model_digest(elsewhere, DigestMemo(None)) != first


def test_unchanged_files_are_read_once(
    copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, kept = copy("wan22-ti2v"), tmp_path / "kept" / "digests.json"
    first = model_digest(directory, DigestMemo(kept))
    with monkeypatch.context() as patch:
        patch.setattr(digest.hashlib, "file_digest", lambda *args: pytest.fail("read again"))
        assert model_digest(directory, DigestMemo(kept)) == first
    weights = directory / "vae" / "diffusion_pytorch_model.safetensors"
    blob = bytearray(weights.read_bytes())
    blob[-1] ^= 1
    before = weights.stat()
    weights.write_bytes(blob)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert model_digest(directory, DigestMemo(kept)) != first


def test_the_configuration_digest_is_over_what_it_says(copy: Callable[[str], Path]) -> None:
    directory = copy("wan22-ti2v")
    first = config_digest(directory)
    scheduler = directory / "scheduler" / "scheduler_config.json"
    settings = json.loads(scheduler.read_text())
    scheduler.write_text(json.dumps(settings))
    assert config_digest(directory) == first
    scheduler.write_text(json.dumps(settings | {"flow_shift": 4.0}))
    assert config_digest(directory) != first


def test_device_and_dtype() -> None:
    assert pick_device("cpu") == CPU
    assert pick_dtype("auto", CPU) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert pick_dtype("float16", CPU) == torch.float16
    with pytest.raises(DeviceUnavailableError, match="'teapot' is not one"):
        pick_device("teapot")
    with pytest.raises(DeviceUnavailableError, match="this machine has"):
        pick_device("cuda:99")
    assert describe(CPU, torch.float32).to_dict()["torch"] == torch.__version__
