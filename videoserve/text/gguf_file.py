"""A chat model as one GGUF file, its weights expanded to float32."""

import json
import math
import re
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from videoserve.text.gguf_header import Header, Stored
from videoserve.text.shape import Shape, UnknownModelError
from videoserve.text.source import Source
from videoserve.text.vocabulary import Vocabulary

# GGUF's names of a layer's matrices, and transformers'.
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Kinds of tokens in a GGUF file: control tokens are no text, those that a user defined are.
CONTROL, USER_DEFINED = 3, 4


def read_gguf(file: Path) -> Source:
    """Raises UnknownModelError for an architecture, a tokenizer or a tensor that is not served."""
    said = Header(file)
    if said("general.architecture") != "llama":
        raise UnknownModelError(f"{file.name} is for {said('general.architecture')!r}; served is 'llama'.")
    weights = {_name(stored.name, file.name): _expanded(said, stored) for stored in said.tensors}
    heads = said("llama.attention.head_count")
    shape = Shape(
        layers=said("llama.block_count"),
        width=said("llama.embedding_length"),
        heads=heads,
        kv_heads=said("llama.attention.head_count_kv"),
        head_dim=said("llama.embedding_length") // heads,
        hidden=said("llama.feed_forward_length"),
        vocabulary=len(weights["model.embed_tokens.weight"]),
        context=said("llama.context_length"),
        # Kept as the float32 nearest to what was meant.
        eps=float(f"{said('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        theta=float(said("llama.rope.freq_base")),
        tied="lm_head.weight" not in weights,
    )
    return Source(
        name=file.stem, shape=shape, weights=weights, pairs_in_halves=False, vocabulary=_vocabulary(said), files=(file,)
    )


def _name(name: str, file: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer and layer[2] in LAYER:
        return f"model.layers.{layer[1]}.{LAYER[layer[2]]}.weight"
    known = OUTSIDE.get(name.removesuffix(".weight"))
    if known is None:
        raise UnknownModelError(f"{file} has a tensor {name}, which no model served here has.")
    return f"{known}.weight"


def _expanded(said: Header, stored: Stored) -> Tensor:
    """A tensor as float32."""
    kind = gguf.GGMLQuantizationType(stored.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows = np.frombuffer(said.bytes_at(stored.at, math.prod(stored.shape) // block * size), dtype=np.uint8)
    if kind == gguf.GGMLQuantizationType.F32:
        return torch.from_numpy(rows.view(np.float32).reshape(stored.shape).copy())
    expanded = gguf.quants.dequantize(rows.reshape(*stored.shape[:-1], -1), kind)
    return torch.from_numpy(np.ascontiguousarray(expanded, dtype=np.float32))


def _vocabulary(said: Header) -> Vocabulary:
    """The byte-level tokenizer whose pieces stand in the file."""
    model, splits = said("tokenizer.ggml.model"), said("tokenizer.ggml.pre")
    if (model, splits) != ("gpt2", "smollm"):
        raise UnknownModelError(f"{said.name} has the tokenizer {model}/{splits}; served of GGUF files is gpt2/smollm.")
    tokens, kinds = said("tokenizer.ggml.tokens"), said("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in said("tokenizer.ggml.merges")]
    built = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    built.decoder = decoders.ByteLevel()
    control, own = ([t for t, k in zip(tokens, kinds, strict=True) if k == kind] for kind in (CONTROL, USER_DEFINED))
    built.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    built.add_tokens([AddedToken(token) for token in own])
    end = said("tokenizer.ggml.eos_token_id")
    return Vocabulary.of_json(
        json.dumps(json.loads(built.to_str())),
        size=len(tokens),
        ends=(end,),
        begin=tokens[said("tokenizer.ggml.bos_token_id")],
        end=tokens[end],
        template=said("tokenizer.chat_template") if "tokenizer.chat_template" in said.values else None,
    )
