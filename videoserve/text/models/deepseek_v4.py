"""Decoders of the DeepSeek-V4 family on the doors of the kernels."""

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from videoserve.text.adapted import Adapted
from videoserve.text.batch import Batch
from videoserve.text.dealt import Dealt
from videoserve.text.models.deepseek_v4_attention import Attention
from videoserve.text.models.deepseek_v4_even import even_out
from videoserve.text.models.deepseek_v4_experts import Grow
from videoserve.text.models.deepseek_v4_pool import V4Pool, bytes_of
from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.models.deepseek_v4_step import Step
from videoserve.text.models.deepseek_v4_weights import V4Weights
from videoserve.text.pools import blocks_within
from videoserve.text.shape import UnknownModelError
from videoserve.text.sharing import Layout, Sharing
from videoserve.text.source import Source
from videoserve_kernels.comm.small import all_reduce_by_size
from videoserve_kernels.mixing import Mixing
from videoserve_kernels.norm import rms_norm
from videoserve_kernels.streams import close_streams, join_streams, open_streams
from videoserve_lora.slots import Slots

# Copies of rings, beside one for each sequence that runs: beginnings that can be gone on from.
SPARE_RINGS = 32


class DeepseekV4:
    """`forward` writes what a batch leaves behind into the pool and returns logits where they are wanted."""

    layouts: tuple[Layout, ...] = ("heads", "tokens")

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

        Of attention every rank has all weights: dealt out are the experts alone.
        """
        if int8:
            raise UnknownModelError("A DeepSeek-V4 model is served in its own type only: chat_weights cannot be int8.")
        assert isinstance(source.shape, V4Shape)
        self.shape = shape = source.shape
        self.device, self.dtype = device, dtype
        self._sharing = sharing = sharing or Sharing.alone()
        if sharing.everybody.size > min(shape.heads, shape.hidden, shape.experts):
            raise UnknownModelError(
                f"{sharing.everybody.size} ranks cannot share {shape.heads} heads and {shape.experts} experts of "
                f"{shape.hidden} channels: each has to have some."
            )
        weights = V4Weights(source, shape, device, dtype, sharing)
        self._embedding = weights("embed.weight", shape.vocabulary, shape.width)
        self._head = self._embedding if shape.tied else weights("head.weight", shape.vocabulary, shape.width)
        self._norm = weights.exact("norm.weight", shape.width)
        self._join = weights.mixing("hc_head", shape.streams, 1)
        self._layers = [weights.layer(i) for i in range(len(shape.kinds))]
        heads: dict[Layout, slice] = {"heads": sharing.share(shape.heads), "tokens": slice(0, shape.heads)}
        self._attentions = {
            layout: [
                Attention(shape, layer, kind, heads=some, overlaps=sharing.overlaps)
                for layer, kind in zip(self._layers, shape.kinds, strict=True)
            ]
            for layout, some in heads.items()
        }
        self._grow = Grow(shape, sharing)

    def pool(self, gib: float, streams: int) -> V4Pool:
        """The memory of `streams` sequences at once, in `gib` GiB. Raises ValueError when that is too little."""
        rings = streams + SPARE_RINGS
        by_block, by_ring = (bytes_of(self.shape, self.dtype.itemsize, by_block=by_block) for by_block in (True, False))
        blocks = blocks_within(gib, by_block, beside=rings * by_ring)
        return V4Pool(self.shape, blocks, rings, device=self.device, dtype=self.dtype)

    def adapted(self, slots: Slots) -> Adapted:
        raise ValueError("Adapters are not served on models of the DeepSeek-V4 family.")

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: V4Pool, layout: Layout = "heads") -> Tensor:
        """Logits float32 [L, vocabulary] of the wanted tokens, on every rank.

        Afterwards the pools of all ranks are equal, whatever the layout: any other one can go on from them.
        """
        shape, sharing = self.shape, self._sharing
        group = sharing.tokens_group(layout)
        step = Step.of(batch, shape, group)
        ids = step.tokens.take(batch.tokens)
        streams = embedding(ids, self._embedding)[:, None].expand(-1, shape.streams, -1).contiguous()
        for layer, attention, cache in zip(self._layers, self._attentions[layout], pool.layers, strict=True):
            x, post, comb = self._open(streams, layer.mixing)
            attended = attention(rms_norm(x, layer.norm, eps=shape.eps), step, cache)
            attended = all_reduce_by_size(
                attended, sharing.heads_group(layout), at_once_bytes=sharing.at_once_bytes
            ).wait()
            streams = close_streams(attended, streams, post, comb)  # [t, H, C]
            x, post, comb = self._open(streams, layer.mlp_mixing)
            grown = self._grow(layer.experts, rms_norm(x, layer.mlp_norm, eps=shape.eps), ids, step.tokens)
            streams = close_streams(grown, streams, post, comb)
        even_out(pool, shape.kinds, step)
        wanted = step.tokens
        if group.size > 1:
            wanted = Dealt.of(step.tokens.owner[batch.wanted.cpu()], group, self.device)
            mine = step.tokens.local(wanted.take(batch.wanted))
            streams = streams.index_select(0, mine.to(self.device))
        else:
            streams = streams.index_select(0, batch.wanted)
        last = join_streams(streams, self._join, eps=shape.stream_eps, norm_eps=shape.eps)
        (last,) = wanted.gather(last).wait()
        return linear(rms_norm(last, self._norm, eps=shape.eps), self._head).float()

    def _open(self, streams: Tensor, mixing: Mixing) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.shape
        return open_streams(streams, mixing, rounds=shape.rounds, eps=shape.stream_eps, norm_eps=shape.eps)
