"""One block of Wan's transformer, run from the parameters of diffusers' module through our kernels."""

from typing import Any

import torch
from torch import Tensor

from videoserve.video.families.context import TextContext
from videoserve.video.families.shard import Shard
from videoserve_kernels.attention import attend
from videoserve_kernels.comm.usp import attention
from videoserve_kernels.modulate import gated_residual, modulated_norm
from videoserve_kernels.norm import layer_norm, rms_norm
from videoserve_kernels.norm_rope import rms_norm_rotate


class WanBlock:
    """Self-attention, cross-attention and feed-forward of one `WanTransformerBlock`, for the tokens of one rank.

    Self-attention alone looks at other tokens, and so it alone talks to other ranks.
    """

    def __init__(self, module: Any, eps: float) -> None:
        self.module = module
        self.eps = eps
        self.heads: int = module.attn1.heads
        own, cross = module.attn1, module.attn2
        for linear in (own.to_q, own.to_k, own.to_v, own.to_out[0], cross.to_q, cross.to_out[0], *self.feed_linears()):
            store_by_input(linear)
        # Absent with cross_attn_norm=False, where diffusers has an identity.
        self.cross_norm: torch.nn.LayerNorm | None = getattr(module.norm2, "normalized_shape", None) and module.norm2

    def split_heads(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (self.heads, -1))

    def text_keys(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, L, N, D] of embedded text tokens [R, L, C]."""
        attn = self.module.attn2
        key = rms_norm(attn.to_k(text), attn.norm_k.weight, eps=attn.norm_k.eps)
        return self.split_heads(key), self.split_heads(attn.to_v(text))

    def image_keys(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, I, N, D] of embedded image tokens [R, I, C]."""
        attn = self.module.attn2
        key = rms_norm(attn.add_k_proj(image), attn.norm_added_k.weight, eps=attn.norm_added_k.eps)
        return self.split_heads(key), self.split_heads(attn.add_v_proj(image))

    def modulation(self, steps: Tensor) -> tuple[Tensor, ...]:
        """Shift, scale and gate of attention and feed-forward, six [R, K, C], of steps float32 [R, K, 6, C]."""
        table: Tensor = self.module.scale_shift_table.float() + steps
        return table.unbind(dim=2)

    def self_attention(self, x: Tensor, table: tuple[Tensor, ...], shard: Shard) -> Tensor:
        """x + gate · attention(modulated norm of x), [R, S, C]."""
        attn = self.module.attn1
        shift, scale, gate = table[:3]
        normal = modulated_norm(x, shift, scale, shard.steps, eps=self.eps)
        # Three products: on a CPU one of three times the width is no faster, and its slices are slower to normalise.
        q = rms_norm_rotate(attn.to_q(normal), attn.norm_q.weight, shard.turns, eps=attn.norm_q.eps)
        k = rms_norm_rotate(attn.to_k(normal), attn.norm_k.weight, shard.turns, eps=attn.norm_k.eps)
        out = attention(q, k, self.split_heads(attn.to_v(normal)), shard.mesh, length=shard.length)
        return gated_residual(x, attn.to_out[0](out.flatten(2)), gate, shard.steps)

    def cross_attention(self, x: Tensor, context: TextContext, layer: int) -> Tensor:
        """x + attention of norm(x) over text and, in a softmax of its own, over the image, [R, S, C]."""
        attn = self.module.attn2
        norm = self.cross_norm
        normal = x if norm is None else layer_norm(x, norm.weight, norm.bias, eps=norm.eps)
        q = self.split_heads(rms_norm(attn.to_q(normal), attn.norm_q.weight, eps=attn.norm_q.eps))
        out = attend(q, context.keys[layer], context.values[layer], key_bias=context.key_bias)
        if context.image_keys:
            out = out + attend(q, context.image_keys[layer], context.image_values[layer])
        result: Tensor = x + attn.to_out[0](out.flatten(2))
        return result

    def feed_linears(self) -> tuple[Any, Any]:
        return self.module.ffn.net[0].proj, self.module.ffn.net[2]

    def feed_forward(self, x: Tensor, table: tuple[Tensor, ...], shard: Shard) -> Tensor:
        """x + gate · feed-forward(modulated norm of x), [R, S, C]."""
        first, last = self.feed_linears()
        shift, scale, gate = table[3:]
        normal = modulated_norm(x, shift, scale, shard.steps, eps=self.eps)
        hidden = torch.ops.aten.gelu_(first(normal), approximate="tanh")
        return gated_residual(x, last(hidden), gate, shard.steps)


def store_by_input(linear: Any) -> None:
    """Lays a linear's weight out input by input: same values, and a CPU's matrix product is a tenth faster."""
    linear.weight.data = linear.weight.data.t().contiguous().t()
