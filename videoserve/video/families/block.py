"""One block of Wan's transformer, run from the parameters of diffusers' module through our kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from videoserve_kernels.attention import attend
from videoserve_kernels.modulate import gated_residual, modulated_norm
from videoserve_kernels.norm import layer_norm, rms_norm
from videoserve_kernels.rope import rotate


class WanBlock:
    """Self-attention, cross-attention and feed-forward of one `WanTransformerBlock`."""

    def __init__(self, module: Any, eps: float) -> None:
        self.module = module
        self.eps = eps
        self.heads: int = module.attn1.heads
        self.qkv_weight, self.qkv_bias = joined([module.attn1.to_q, module.attn1.to_k, module.attn1.to_v])
        for linear in (module.attn1.to_out[0], module.attn2.to_q, module.attn2.to_out[0], *self.feed_forward_linears()):
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

    def self_attention(self, x: Tensor, table: tuple[Tensor, ...], frame_index: Tensor, turns: Tensor) -> Tensor:
        """x + gate · attention(modulated norm of x), [R, S, C]."""
        attn = self.module.attn1
        shift, scale, gate = table[:3]
        normal = modulated_norm(x, shift, scale, frame_index, eps=self.eps)
        q, k, v = functional.linear(normal, self.qkv_weight, self.qkv_bias).chunk(3, dim=-1)
        q = rotate(self.split_heads(rms_norm(q, attn.norm_q.weight, eps=attn.norm_q.eps)), turns)
        k = rotate(self.split_heads(rms_norm(k, attn.norm_k.weight, eps=attn.norm_k.eps)), turns)
        out = attn.to_out[0](attend(q, k, self.split_heads(v)).flatten(2))
        return gated_residual(x, out, gate, frame_index)

    def cross_attention(
        self, x: Tensor, keys: tuple[Tensor, Tensor], key_bias: Tensor, image_keys: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """x + attention of norm(x) over text and, on its own softmax, over the image, [R, S, C]."""
        attn = self.module.attn2
        norm = self.cross_norm
        normal = x if norm is None else layer_norm(x, norm.weight, norm.bias, eps=norm.eps)
        q = self.split_heads(rms_norm(attn.to_q(normal), attn.norm_q.weight, eps=attn.norm_q.eps))
        out = attend(q, *keys, key_bias=key_bias)
        if image_keys is not None:
            out = out + attend(q, *image_keys)
        result: Tensor = x + attn.to_out[0](out.flatten(2))
        return result

    def feed_forward_linears(self) -> tuple[Any, Any]:
        return self.module.ffn.net[0].proj, self.module.ffn.net[2]

    def feed_forward(self, x: Tensor, table: tuple[Tensor, ...], frame_index: Tensor) -> Tensor:
        """x + gate · feed-forward(modulated norm of x), [R, S, C]."""
        first, last = self.feed_forward_linears()
        shift, scale, gate = table[3:]
        normal = modulated_norm(x, shift, scale, frame_index, eps=self.eps)
        return gated_residual(x, last(functional.gelu(first(normal), approximate="tanh")), gate, frame_index)


def joined(linears: list[Any]) -> tuple[Tensor, Tensor]:
    """Weights and biases of linears over the same input as one; theirs become views of it, so none is held twice."""
    weight = torch.cat([linear.weight.data for linear in linears]).t().contiguous().t()
    bias = torch.cat([linear.bias.data for linear in linears])
    sizes = [linear.out_features for linear in linears]
    for linear, own_weight, own_bias in zip(linears, torch.split(weight, sizes), torch.split(bias, sizes), strict=True):
        linear.weight.data, linear.bias.data = own_weight, own_bias
    return weight, bias


def store_by_input(linear: Any) -> None:
    """Lays a linear's weight out input by input: same values, and a CPU's matrix product is a tenth faster."""
    linear.weight.data = linear.weight.data.t().contiguous().t()
