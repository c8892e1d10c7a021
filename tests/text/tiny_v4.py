"""A tiny DeepSeek-V4 with every kind of layer, each of its parts random."""

from typing import Any

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}


def tiny_v4(rates: tuple[int, int] = (4, 16), **changes: Any) -> DeepseekV4ForCausalLM:
    """257 tokens, context 512, a window of 16; `rates` are tokens an entry, sparse and heavily compressed."""
    sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
    fields: dict[str, Any] = {
        "vocab_size": 257, "hidden_size": 48, "moe_intermediate_size": 24, "num_hidden_layers": 5,
        "num_attention_heads": 4, "head_dim": 32, "partial_rotary_factor": 0.25, "q_lora_rank": 20, "o_groups": 2,
        "o_lora_rank": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "sliding_window": 16,
        "layer_types": ["sliding_attention", "sliding_attention", sparse, heavy, sparse],
        "mlp_layer_types": ["hash_moe"] * 3 + ["moe"] * 2, "compress_rates": {sparse: rates[0], heavy: rates[1]},
        "index_n_heads": 3, "index_head_dim": 16, "index_topk": 128, "max_position_embeddings": 512,
        "rope_parameters": dict(YARN), "bos_token_id": 256, "eos_token_id": 256, "initializer_range": 0.1,
        "swiglu_limit": 0.5,
    }  # fmt: skip
    torch.manual_seed(7)
    model = DeepseekV4ForCausalLM(DeepseekV4Config(**(fields | changes))).eval()
    # What starts as zeros or ones would hide a part that is left out.
    for name, tensor in model.state_dict().items():
        if name.endswith(("sinks", "position_bias", "e_score_correction_bias", "norm.weight", "base", "scale")):
            tensor.add_(torch.randn_like(tensor) * 0.5)
        elif name.endswith("tid2eid"):
            tensor.random_(0, model.config.n_routed_experts)
    return model
