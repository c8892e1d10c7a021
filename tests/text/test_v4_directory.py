"""DeepSeek-V4 directories: in transformers' words and in DeepSeek's own; what cannot be served is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from videoserve.text.batch import Batch, Part
from videoserve.text.load import Loaded, load_model
from videoserve.text.pools import BLOCK
from videoserve.text.shape import UnknownModelError

CPU = torch.device("cpu")


@pytest.fixture
def copied(chat_dir: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(chat_dir("v4"), tmp_path / "copied"))


def load(directory: Path, *, int8: bool = False) -> Loaded:
    return load_model(str(directory), device=CPU, dtype=torch.float32, int8=int8)


def logits(loaded: Loaded) -> torch.Tensor:
    part = Part(tokens=list(range(40)), start=0, blocks=[0, 1, 2], logits=True)
    return loaded.model.forward(Batch.of([part], BLOCK, CPU), loaded.model.pool(0.01, 1))


def change(directory: Path, **fields: Any) -> None:
    config = json.loads((directory / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(kept))


def rewrite(directory: Path, edit: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    file = directory / "model.safetensors"
    weights = edit(load_file(file))
    file.unlink()
    save_file(weights, file)


def test_deepseeks_own_names_and_fields_are_read(copied: Path, chat_dir: Callable[[str], Path]) -> None:
    own = {"embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}

    def rename(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        bare = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        renamed = {own.get(name, name).replace("hc_head.hc_", "hc_head_"): tensor for name, tensor in bare.items()}
        return {name.replace(".attn.norm.", ".attn.kv_norm."): tensor for name, tensor in renamed.items()} | {
            "mtp.0.norm.weight": torch.zeros(3)
        }

    rewrite(copied, rename)
    yarn = json.loads((copied / "config.json").read_text())["rope_parameters"]["compress"]
    scaling = {name: yarn[name] for name in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow")}
    change(
        copied, mlp_layer_types=None, num_hash_layers=3, partial_rotary_factor=None, qk_rope_head_dim=8,
        rope_parameters=None, rope_scaling={"type": "yarn", **scaling},
    )  # fmt: skip
    assert torch.equal(logits(load(copied)), logits(load(chat_dir("v4"))))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2; served is 1"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; served is 'sqrtsoftplus'"),
        ({"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 24}}, "entry of 24 tok"),
        ({"layer_types": ["full_attention"] * 5}, "configuration cannot be used"),
        ({"layer_types": None}, r"has no layers\.0\.attn\.compressor\.wkv\.weight"),
        ({"n_routed_experts": 9}, r"has no layers\.0\.ffn\.experts\.8\.w1\.weight"),
        ({"vocab_size": 256}, r"embed\.weight is \[257, 48\]; it has to be \[256, 48\]"),
    ],
)
def test_a_configuration_that_is_not_served(copied: Path, fields: dict[str, Any], words: str) -> None:
    change(copied, **fields)
    with pytest.raises(UnknownModelError, match=words):
        load(copied)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_weights_in_a_type_that_is_not_served(copied: Path, dtype: torch.dtype) -> None:
    name = "model.layers.1.attn.wq_a.weight"
    # Two numbers of 4 bits lie in one of these.
    rewrite(copied, lambda weights: weights | {name: weights[name][:, ::2].contiguous().to(dtype)})
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(UnknownModelError, match=rf"wq_a\.weight is {kind}: quantised checkpoints are not served"):
        load(copied)


def test_8_bits_are_refused(chat_dir: Callable[[str], Path]) -> None:
    with pytest.raises(UnknownModelError, match="chat_weights cannot be int8"):
        load(chat_dir("v4"), int8=True)
