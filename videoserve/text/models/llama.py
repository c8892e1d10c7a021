"""Decoders of the Llama family on the doors of the kernels: Llama, SmolLM2, Qwen3."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from videoserve.text.adapted import Adapted, Place
from videoserve.text.batch import Batch
from videoserve.text.matrix import Matrix, matrix
from videoserve.text.models.llama_adapters import adapted
from videoserve.text.pools import BLOCK, KvPool, blocks_within
from videoserve.text.shape import Shape, UnknownModelError
from videoserve.text.sharing import Layout, Sharing
from videoserve.text.source import Source
from videoserve_kernels.comm.small import all_reduce_by_size
from videoserve_kernels.norm import add_rms_norm, rms_norm
from videoserve_kernels.norm_rope import rms_norm_rotate
from videoserve_kernels.paged import paged_attention, store_kv
from videoserve_kernels.pages import Pages
from videoserve_kernels.rope import axis_angles, rotate
from videoserve_lora.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. `qkv` and `gate_up` are several matrices in one; q_norm and k_norm are of one head or None."""

    norm: Tensor
    qkv: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


class Llama:
    """`forward` writes the keys and values of a batch into the pool and returns logits where they are wanted.

    Heads' channels are laid out so that the rotary embedding turns neighbours: one product of complex numbers.
    """

    layouts: tuple[Layout, ...] = ("heads",)

    def __init__(
        self,
        source: Source,
        *,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
        sharing: Sharing | None = None,
    ):
        """Raises UnknownModelError for a weight that is missing or of another shape, and for ranks without a head.

        Of several ranks each has some of the key heads with their queries, and some channels of the hidden layers.
        """
        assert isinstance(source.shape, Shape)
        self.shape = source.shape
        self.device, self.dtype = device, dtype
        self._sharing = sharing = sharing or Sharing.alone()
        self._mine = share_of(self.shape, sharing)
        weights = Weights(source, device, dtype)
        self._embedding = weights("model.embed_tokens", self.shape.vocabulary, self.shape.width)
        head = "model.embed_tokens" if self.shape.tied else "lm_head"
        self._head = matrix(weights(head, self.shape.vocabulary, self.shape.width), int8=int8)
        self._norm = weights("model.norm", self.shape.width)
        self._layers = [_layer(weights, self.shape, i, int8, sharing) for i in range(self.shape.layers)]
        angles = axis_angles(self.shape.context, self.shape.head_dim, theta=self.shape.theta)
        self._turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(device)

    def pool(self, gib: float, streams: int) -> KvPool:
        """The memory of any number of sequences, in `gib` GiB. Raises ValueError when that is too little."""
        blocks = blocks_within(gib, BLOCK * self._mine.kv_bytes(self.dtype.itemsize))
        return KvPool(self._mine, blocks, device=self.device, dtype=self.dtype)

    def adapted(self, slots: Slots) -> Adapted:
        return adapted(slots, self.shape, self._sharing, device=self.device, dtype=self.dtype)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: KvPool, layout: Layout = "heads") -> Tensor:
        """Logits float32 [L, vocabulary] of the wanted tokens, on every rank."""
        assert layout in self.layouts
        turns = self._turns.index_select(0, batch.positions)
        residual = embedding(batch.tokens, self._embedding)  # [T, C]
        x = rms_norm(residual, self._layers[0].norm, eps=self.shape.eps)
        for i, layer in enumerate(self._layers):
            mixed = _times(layer.qkv, Place(i, "qkv"), x, batch)
            heads = self._attend(layer, mixed, turns, batch, pool.pages(i, batch.tables))
            attended = self._sum(_times(layer.out, Place(i, "out"), heads, batch))
            x, residual = add_rms_norm(attended, residual, layer.mlp_norm, eps=self.shape.eps)
            gate, up = _times(layer.gate_up, Place(i, "gate_up"), x, batch).chunk(2, dim=-1)
            grown = self._sum(_times(layer.down, Place(i, "down"), silu(gate).mul_(up), batch))
            if i + 1 < len(self._layers):
                x, residual = add_rms_norm(grown, residual, self._layers[i + 1].norm, eps=self.shape.eps)
        last = (grown + residual).index_select(0, batch.wanted)
        return self._head(rms_norm(last, self._norm, eps=self.shape.eps)).float()

    def _sum(self, x: Tensor) -> Tensor:
        return all_reduce_by_size(x, self._sharing.everybody, at_once_bytes=self._sharing.at_once_bytes).wait()

    def _attend(self, layer: Layer, projected: Tensor, turns: Tensor, batch: Batch, pages: Pages) -> Tensor:
        shape = self._mine
        mixed = torch.unflatten(projected, -1, (-1, shape.head_dim))  # [T, N + 2M, D]
        turned = shape.heads + shape.kv_heads
        if layer.q_norm is None or layer.k_norm is None:
            both = rotate(mixed[None, :, :turned], turns)[0]
            q, k = both[:, : shape.heads], both[:, shape.heads :]
        else:
            heads, keys = mixed[:, : shape.heads].flatten(1), mixed[:, shape.heads : turned].flatten(1)
            q = rms_norm_rotate(heads[None], layer.q_norm, turns, eps=shape.eps)[0]
            k = rms_norm_rotate(keys[None], layer.k_norm, turns, eps=shape.eps)[0]
        store_kv(k, mixed[:, turned:], pages, batch.rows, batch.positions, slots=batch.slots)
        return paged_attention(q.contiguous(), pages, batch.rows, batch.positions, runs=batch.runs).flatten(1)


def _times(base: Matrix, place: Place, x: Tensor, batch: Batch) -> Tensor:
    """The product of all rows, and in the rows of each set of adapters what that one adds."""
    y = base(x)
    for group in batch.groups:
        group.add(place, y, x)
    return y


class Weights:
    """The weights of a source by module, checked, on a device."""

    def __init__(self, source: Source, device: torch.device, dtype: torch.dtype):
        self._weights: Mapping[str, Tensor] = source.weights
        self._halves = source.pairs_in_halves
        self._name, self._device, self._dtype = source.name, device, dtype

    def __call__(self, module: str, *shape: int) -> Tensor:
        name = f"{module}.weight"
        if name not in self._weights:
            raise UnknownModelError(f"The chat model {self._name} has no {name}: it is not complete.")
        found = self._weights[name]
        if not found.dtype.is_floating_point or found.itemsize < 2:
            kind = str(found.dtype).removeprefix("torch.")
            raise UnknownModelError(f"The chat model's {name} is {kind}: quantised checkpoints are not served.")
        if tuple(found.shape) != shape:
            raise UnknownModelError(f"The chat model's {name} is {list(found.shape)}; it has to be {list(shape)}.")
        return found.to(self._device, self._dtype).contiguous()

    def turned(self, module: str, head_dim: int, *shape: int) -> Tensor:
        """A weight whose rows are channels of heads, in pairs that stand side by side."""
        weight = self(module, *shape)
        if not self._halves:
            return weight
        heads = torch.unflatten(weight, 0, (-1, 2, head_dim // 2))
        return heads.transpose(1, 2).flatten(0, 2).contiguous()


def share_of(shape: Shape, sharing: Sharing) -> Shape:
    """What a rank has of a model, as if it were all of one."""
    ranks = sharing.everybody.size
    if ranks > min(shape.kv_heads, shape.hidden):
        raise UnknownModelError(f"{ranks} ranks cannot share {shape.kv_heads} key heads: each has to have some.")
    keys, hidden = sharing.share(shape.kv_heads), sharing.share(shape.hidden)
    count = keys.stop - keys.start
    return replace(shape, heads=count * shape.group, kv_heads=count, hidden=hidden.stop - hidden.start)


def _layer(weights: Weights, shape: Shape, index: int, int8: bool, sharing: Sharing) -> Layer:
    at = f"model.layers.{index}"
    width, inner, keys = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    heads, channels = sharing.share(shape.kv_heads), sharing.share(shape.hidden)
    own = slice(heads.start * shape.head_dim, heads.stop * shape.head_dim)
    asking = slice(own.start * shape.group, own.stop * shape.group)
    qkv = torch.cat(
        (
            weights.turned(f"{at}.self_attn.q_proj", shape.head_dim, inner, width)[asking],
            weights.turned(f"{at}.self_attn.k_proj", shape.head_dim, keys, width)[own],
            weights(f"{at}.self_attn.v_proj", keys, width)[own],
        )
    )
    gate_up = torch.cat([weights(f"{at}.mlp.{part}_proj", shape.hidden, width)[channels] for part in ("gate", "up")])
    out = weights(f"{at}.self_attn.o_proj", width, inner)[:, asking].contiguous()
    down = weights(f"{at}.mlp.down_proj", width, shape.hidden)[:, channels].contiguous()
    normed = [
        weights.turned(f"{at}.self_attn.{part}_norm", shape.head_dim, shape.head_dim) if shape.normed_heads else None
        for part in ("q", "k")
    ]
    return Layer(
        norm=weights(f"{at}.input_layernorm", width),
        qkv=matrix(qkv, int8=int8),
        q_norm=normed[0],
        k_norm=normed[1],
        out=matrix(out, int8=int8),
        mlp_norm=weights(f"{at}.post_attention_layernorm", width),
        gate_up=matrix(gate_up, int8=int8),
        down=matrix(down, int8=int8),
    )
