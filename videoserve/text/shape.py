"""What a decoder of the Llama family is made of, read from its configuration and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "qwen3")
SERVED = (*FAMILIES, "deepseek_v4")


class UnknownModelError(ValueError):
    """A chat model that is not served here; the message says what about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`context` is the most tokens a sequence may have; `normed_heads` says whether queries and keys are normalised."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int
    context: int
    eps: float
    theta: float
    tied: bool
    normed_heads: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Shape":
        """From transformers' config.json. Raises UnknownModelError."""
        family = config.get("model_type")
        if family not in FAMILIES:
            raise UnknownModelError(f"The chat model's model_type is {family!r}; served are {', '.join(SERVED)}.")
        for name, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
            if config.get(name, wanted) != wanted:
                raise UnknownModelError(f"The chat model's {name} is {config[name]!r}; served is {wanted!r}.")
        if config.get("use_sliding_window"):
            raise UnknownModelError("The chat model has layers with a sliding window, which are not served.")
        heads = config["num_attention_heads"]
        return cls(
            layers=config["num_hidden_layers"],
            width=config["hidden_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            hidden=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
            eps=config["rms_norm_eps"],
            theta=_theta(config),
            tied=config.get("tie_word_embeddings", False),
            normed_heads=family == "qwen3",
        )

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize


def _theta(config: Mapping[str, Any]) -> float:
    """The base of the rotary embedding, which transformers wrote in one place until version 4 and in another since."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise UnknownModelError(f"The chat model's rotary embedding is {kind!r}; served is 'default'.")
    return float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
