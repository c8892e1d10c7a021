"""The weights of a DeepSeek-V4 model, laid out for computing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.shape import UnknownModelError
from videoserve.text.sharing import Sharing
from videoserve.text.source import Source
from videoserve_kernels.mixing import Mixing

# transformers writes DeepSeek's names, but for these.
RENAMED = (
    (r"^model\.", ""),
    (r"^embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"^hc_head\.hc_", "hc_head_"),
    (r"\.attn\.norm\.", ".attn.kv_norm."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """Makes entries of tokens. `project` [2C, width]: what is added up, and its gates; bias [P, C], norm [D]."""

    project: Tensor
    bias: Tensor
    norm: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Chooses among entries by keys of its own; `q` [H·D, q_rank] and `weights` [H, width]."""

    keys: Compressor
    q: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """gate_up [E, 2I, C], gate first, and down [E, C, I]; `shared_…` are those of the expert that all tokens take.

    Of several ranks each has only some of the experts E, or of their channels I, and some channels of the shared one.

    `router` [E, C]; a layer has either a `bias` [E] that chooses beside the scores or the experts `of_token` [V, K].
    """

    router: Tensor
    bias: Tensor | None
    of_token: Tensor | None
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """q_down [R, C], q_up [N·D, R], kv [D, C], out_down [G, R', N·D/G], out_up [C, G·R']."""

    mixing: Mixing
    norm: Tensor
    q_down: Tensor
    q_norm: Tensor
    q_up: Tensor
    kv: Tensor
    kv_norm: Tensor
    sinks: Tensor
    out_down: Tensor
    out_up: Tensor
    compressor: Compressor | None
    indexer: Indexer | None
    mlp_mixing: Mixing
    mlp_norm: Tensor
    experts: Experts


class V4Weights:
    """The tensors of a source by DeepSeek's names, checked, on a device."""

    def __init__(self, source: Source, shape: V4Shape, device: torch.device, dtype: torch.dtype, sharing: Sharing):
        self._weights: Mapping[str, Tensor] = {renamed(name): tensor for name, tensor in source.weights.items()}
        self._name, self._shape, self._device, self._dtype = source.name, shape, device, dtype
        self._shared = sharing.share(shape.hidden)
        whole = sharing.experts == "whole"
        self._some = sharing.share(shape.experts) if whole else slice(0, shape.experts)
        self._channels = slice(0, shape.hidden) if whole else self._shared

    def __call__(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        if name not in self._weights:
            raise UnknownModelError(f"The chat model {self._name} has no {name}: it is not complete.")
        found = self._weights[name]
        # Before the shape: what is quantised is packed as well.
        if found.dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32):
            kind = str(found.dtype).removeprefix("torch.")
            raise UnknownModelError(f"The chat model's {name} is {kind}: quantised checkpoints are not served.")
        if tuple(found.shape) != shape:
            raise UnknownModelError(f"The chat model's {name} is {list(found.shape)}; it has to be {list(shape)}.")
        return found.to(self._device, dtype or self._dtype).contiguous()

    def exact(self, name: str, *shape: int) -> Tensor:
        """What is small and kept in float32, whatever the model's type."""
        return self(name, *shape, dtype=torch.float32)

    def mixing(self, name: str, count: int, scales: int) -> Mixing:
        return Mixing(
            self.exact(f"{name}_fn", count, self._shape.streams * self._shape.width),
            self.exact(f"{name}_base", count),
            self.exact(f"{name}_scale", scales),
        )

    def layer(self, index: int) -> Layer:
        shape, at = self._shape, f"layers.{index}"
        inner, mixed = shape.heads * shape.head_dim, (2 + shape.streams) * shape.streams
        out_down = self(f"{at}.attn.wo_a.weight", shape.groups * shape.out_rank, inner // shape.groups)
        sparse = shape.kinds[index] == "compressed_sparse_attention"
        halves = 2 if sparse else 1
        return Layer(
            mixing=self.mixing(f"{at}.hc_attn", mixed, 3),
            norm=self.exact(f"{at}.attn_norm.weight", shape.width),
            q_down=self(f"{at}.attn.wq_a.weight", shape.q_rank, shape.width),
            q_norm=self.exact(f"{at}.attn.q_norm.weight", shape.q_rank),
            q_up=self(f"{at}.attn.wq_b.weight", inner, shape.q_rank),
            kv=self(f"{at}.attn.wkv.weight", shape.head_dim, shape.width),
            kv_norm=self.exact(f"{at}.attn.kv_norm.weight", shape.head_dim),
            sinks=self.exact(f"{at}.attn.attn_sink", shape.heads),
            out_down=torch.unflatten(out_down, 0, (shape.groups, shape.out_rank)),
            out_up=self(f"{at}.attn.wo_b.weight", shape.width, shape.groups * shape.out_rank),
            compressor=self._compressor(f"{at}.attn", index, halves, shape.head_dim) if shape.rate(index) else None,
            indexer=self._indexer(f"{at}.attn.indexer", index) if sparse else None,
            mlp_mixing=self.mixing(f"{at}.hc_ffn", mixed, 3),
            mlp_norm=self.exact(f"{at}.ffn_norm.weight", shape.width),
            experts=self._experts(f"{at}.ffn", hashed=shape.hashed[index]),
        )

    def _compressor(self, at: str, index: int, halves: int, head_dim: int) -> Compressor:
        channels, width = halves * head_dim, self._shape.width
        parts = [self(f"{at}.compressor.{part}.weight", channels, width) for part in ("wkv", "wgate")]
        return Compressor(
            project=torch.cat(parts),
            bias=self.exact(f"{at}.compressor.ape", self._shape.rate(index), channels),
            norm=self.exact(f"{at}.compressor.norm.weight", head_dim),
        )

    def _indexer(self, at: str, index: int) -> Indexer:
        shape = self._shape
        return Indexer(
            keys=self._compressor(at, index, 2, shape.index_dim),
            q=self(f"{at}.wq_b.weight", shape.index_heads * shape.index_dim, shape.q_rank),
            weights=self(f"{at}.weights_proj.weight", shape.index_heads, shape.width),
        )

    def _experts(self, at: str, *, hashed: bool) -> Experts:
        shape = self._shape
        ours = range(self._some.start, self._some.stop)
        gate_up = torch.stack([self._gate_up(f"{at}.experts.{i}", self._channels) for i in ours])
        down = [self._down(f"{at}.experts.{i}", self._channels) for i in ours]
        table = (shape.vocabulary, shape.taken)
        return Experts(
            router=self(f"{at}.gate.weight", shape.experts, shape.width),
            bias=None if hashed else self.exact(f"{at}.gate.bias", shape.experts),
            of_token=self(f"{at}.gate.tid2eid", *table, dtype=torch.int64) if hashed else None,
            gate_up=gate_up,
            down=torch.stack(down),
            shared_gate_up=self._gate_up(f"{at}.shared_experts", self._shared),
            shared_down=self._down(f"{at}.shared_experts", self._shared).clone(),
        )

    def _gate_up(self, at: str, channels: slice) -> Tensor:
        size = self._shape.hidden, self._shape.width
        return torch.cat([self(f"{at}.{part}.weight", *size)[channels] for part in ("w1", "w3")])

    def _down(self, at: str, channels: slice) -> Tensor:
        return self(f"{at}.w2.weight", self._shape.width, self._shape.hidden)[:, channels]


def renamed(name: str) -> str:
    """A tensor's name as DeepSeek's own files have it."""
    for pattern, into in RENAMED:
        name = re.sub(pattern, into, name)
    return name
