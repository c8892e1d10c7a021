"""The DeepSeek-V4 of the stages: small, with the published proportions between what travels; and its batches."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file

from videoserve.text.batch import Batch, Part
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.pools import BLOCK
from videoserve.text.source import Source

CPU = torch.device("cpu")
STREAMS, PROMPT, GIB = 8, 64, 0.25
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
# Latents an eighth of the width, entries of 4 and 128 tokens and four streams, as published. The indexer chooses all
# entries: with near-ties between two of them ranks that round otherwise would rightly answer otherwise.
FIELDS: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 512, "moe_intermediate_size": 256, "num_hidden_layers": 5,
    "num_attention_heads": 16, "head_dim": 64, "partial_rotary_factor": 0.125, "q_lora_rank": 128, "o_groups": 8,
    "o_lora_rank": 64, "n_routed_experts": 8, "num_experts_per_tok": 2, "sliding_window": 128,
    "layer_types": ["sliding_attention", "sliding_attention", SPARSE, HEAVY, SPARSE],
    "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 2, "compress_rates": {SPARSE: 4, HEAVY: 128},
    "index_n_heads": 4, "index_head_dim": 16, "index_topk": 4096, "max_position_embeddings": 8192,
    "initializer_range": 0.05, "hc_mult": 4,
}  # fmt: skip


def write(folder: Path) -> None:
    """Random weights, and their shape, for all ranks."""
    # Only here: the ranks do without.
    from transformers import DeepseekV4Config, DeepseekV4ForCausalLM  # noqa: PLC0415

    torch.manual_seed(7)
    DeepseekV4ForCausalLM(DeepseekV4Config(**FIELDS)).save_pretrained(folder)
    torch.save(V4Shape.of_config(FIELDS), folder / "shape.pt")


def read(folder: str) -> Source:
    shape: V4Shape = torch.load(Path(folder) / "shape.pt", weights_only=False)
    weights = load_file(Path(folder) / "model.safetensors")
    # Nothing here is said in words.
    return Source(
        name="stages", shape=shape, weights=weights, pairs_in_halves=False, vocabulary=cast(Any, None), files=()
    )


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, FIELDS["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def prompt(tokens: int) -> Batch:
    """One long prompt."""
    blocks = range(-(-tokens // BLOCK))
    return Batch.of([Part(tokens=ids(tokens, 1), start=0, blocks=blocks, logits=True)], BLOCK, CPU)


def beginnings() -> Batch:
    """The prompts of the streams that are answered."""
    return Batch.of([part(ring, 0, PROMPT) for ring in range(STREAMS)], BLOCK, CPU)


def answers(step: int) -> Batch:
    """One more token of each stream."""
    return Batch.of([part(ring, PROMPT + step, 1) for ring in range(STREAMS)], BLOCK, CPU)


def part(ring: int, start: int, count: int) -> Part:
    known: Sequence[int] = ids(2 * PROMPT + 64, 10 + ring)
    blocks = range(16 * ring, 16 * ring + 16)
    return Part(tokens=known[start : start + count], start=start, blocks=blocks, logits=True, ring=ring)
