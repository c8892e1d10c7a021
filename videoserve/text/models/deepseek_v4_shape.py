"""What a decoder of the DeepSeek-V4 family is made of, read from its configuration and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from videoserve.text.pools import BLOCK
from videoserve.text.shape import UnknownModelError

FAMILY = "deepseek_v4"
Kind = Literal["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
SERVED = {
    "num_key_value_heads": 1, "hidden_act": "silu", "scoring_func": "sqrtsoftplus", "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rope:
    """Angles are position · rates, float32 [turned / 2] as transformers computes them; `scale` lengthens the turns."""

    rates: Tensor
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class V4Shape:
    """`kinds` and `hashed` have one value a layer; `rates` are tokens an entry of the two kinds that compress.

    `rope` turns the tail of a head where there is a window alone, `far_rope` where there are compressed entries.
    """

    kinds: tuple[Kind, ...]
    hashed: tuple[bool, ...]
    rates: Mapping[Kind, int]
    width: int
    heads: int
    head_dim: int
    q_rank: int
    groups: int
    out_rank: int
    window: int
    index_heads: int
    index_dim: int
    index_count: int
    experts: int
    taken: int
    hidden: int
    expert_scale: float
    limit: float
    streams: int
    rounds: int
    stream_eps: float
    eps: float
    vocabulary: int
    context: int
    tied: bool
    rope: Rope
    far_rope: Rope

    @classmethod
    def of_config(cls, said: Mapping[str, Any]) -> "V4Shape":
        """From config.json, DeepSeek's own or transformers'. Raises UnknownModelError."""
        # Only here: a second of imports that no other family needs. It knows every older spelling of the fields.
        from huggingface_hub.errors import StrictDataclassError  # noqa: PLC0415
        from transformers import DeepseekV4Config  # noqa: PLC0415

        try:
            config = DeepseekV4Config(**said)
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise UnknownModelError(f"The chat model's configuration cannot be used: {error}") from None
        for name, wanted in SERVED.items():
            if getattr(config, name) != wanted:
                raise UnknownModelError(f"The chat model's {name} is {getattr(config, name)!r}; served is {wanted!r}.")
        for rate in config.compress_rates.values():
            if rate < 1 or (BLOCK % rate and rate % BLOCK):
                raise UnknownModelError(
                    f"The chat model makes one entry of {rate} tokens; served are divisors and multiples of {BLOCK}."
                )
        return cls(
            kinds=tuple(config.layer_types),
            hashed=tuple(kind == "hash_moe" for kind in config.mlp_layer_types),
            rates=dict(config.compress_rates),
            width=config.hidden_size,
            heads=config.num_attention_heads,
            head_dim=config.head_dim,
            q_rank=config.q_lora_rank,
            groups=config.o_groups,
            out_rank=config.o_lora_rank,
            window=config.sliding_window,
            index_heads=config.index_n_heads,
            index_dim=config.index_head_dim,
            index_count=config.index_topk,
            experts=config.n_routed_experts,
            taken=config.num_experts_per_tok,
            hidden=config.moe_intermediate_size,
            expert_scale=config.routed_scaling_factor,
            limit=config.swiglu_limit,
            streams=config.hc_mult,
            rounds=config.hc_sinkhorn_iters,
            stream_eps=config.hc_eps,
            eps=config.rms_norm_eps,
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
            tied=config.tie_word_embeddings,
            rope=_rope(config, "main"),
            far_rope=_rope(config, "compress"),
        )

    def rate(self, layer: int) -> int:
        """Tokens an entry of a layer; 0 where there is a window alone."""
        return self.rates.get(self.kinds[layer], 0)


def _rope(config: Any, label: str) -> Rope:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415

    parameters = config.rope_parameters[label]
    if parameters["rope_type"] != "default":
        rates, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, layer_type=label)
        return Rope(rates=rates, scale=float(scale))
    turned = int(config.head_dim * parameters["partial_rotary_factor"])
    exponents = torch.arange(0, turned, 2, dtype=torch.float32) / turned
    return Rope(rates=1.0 / (parameters["rope_theta"] ** exponents), scale=1.0)
