"""The demo's WanTransformer3DModel and a training forward, equal to diffusers' own but cheaper.

Two facts are used: a clip has only two timesteps, 0 for the first latent frame and t for the others, so modulation is
computed twice instead of once a token; and all padding of a prompt is the same zero vector, so one token with the
logarithm of their number as attention bias stands for all of it.
"""

import math
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch.nn import functional, init

HEADS, HEAD = 8, 32
LAYERS = 6
EPSILON = 1e-6


def new_dit(channels: int, text_channels: int) -> WanTransformer3DModel:
    """A DiT for latents of that many channels with the recipe's start (`start`)."""
    return start(
        WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=HEADS,
            attention_head_dim=HEAD,
            in_channels=channels,
            out_channels=channels,
            text_dim=text_channels,
            freq_dim=256,
            ffn_dim=768,
            num_layers=LAYERS,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            eps=EPSILON,
            image_dim=None,
            added_kv_proj_dim=None,
            rope_max_seq_len=256,
        )
    )


def start(dit: Any) -> WanTransformer3DModel:
    """Close every branch and point the heads at neighbours.

    Six of eight heads of self-attention begin with constant query and key biases whose rotary phases make them look at
    one relative position (the token itself, and 1.2 tokens to each side): motion then only has to move that position.
    """
    init.zeros_(dit.proj_out.weight)
    init.zeros_(dit.proj_out.bias)
    init.zeros_(dit.condition_embedder.time_proj.weight)
    init.zeros_(dit.condition_embedder.time_proj.bias)
    dit.scale_shift_table.data.zero_()
    for block in dit.blocks:
        block.scale_shift_table.data.zero_()
        block.scale_shift_table.data[:, [2, 5]] = 1.0
        for layer in (block.attn1.to_out[0], block.attn2.to_out[0], block.ffn.net[2]):
            init.zeros_(layer.weight)
            init.zeros_(layer.bias)
        for attention in (block.attn1, block.attn2):
            for layer in (attention.to_q, attention.to_k, attention.to_v):
                init.xavier_uniform_(layer.weight)
                init.zeros_(layer.bias)
        point_heads(block.attn1)
    return dit


def point_heads(attention: Any) -> None:
    """Set the biases described in `start`."""
    attention.to_q.weight.data.mul_(0.5)
    attention.to_k.weight.data.mul_(0.5)
    query, key = attention.to_q.bias.data, attention.to_k.bias.data
    spatial = 2 * (HEAD // 6)
    temporal = HEAD - 2 * spatial
    offsets = [(0.0, 0.0), (0.0, 0.0), (0.0, 1.2), (0.0, -1.2), (1.2, 0.0), (-1.2, 0.0)]
    for head, offset in enumerate(offsets):
        for axis in range(2):
            for pair, size in ((0, 3.0), (1, 1.5)):
                phase = 10000 ** (-2 * pair / spatial) * offset[axis]
                place = head * HEAD + temporal + axis * spatial + 2 * pair
                key[place], query[place], query[place + 1] = size, size * math.cos(phase), size * math.sin(phase)
    for place, size in ((6 * HEAD, 1.5), (6 * HEAD + 2, 2.0)):
        key[place] = query[place] = size


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions on x [B, N, S, D], cos and sin [S, D / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def heads(x: torch.Tensor) -> torch.Tensor:
    """[B, S, N * D] to [B, N, S, D]."""
    return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)


def attend(
    attention: Any, x: torch.Tensor, context: torch.Tensor, rope: Any = None, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """One attention layer of a block: x [B, S, C] looks at context [B, L, C]."""
    query = heads(attention.norm_q(attention.to_q(x)))
    key, value = heads(attention.norm_k(attention.to_k(context))), heads(attention.to_v(context))
    if rope is not None:
        query, key = turned(query, *rope), turned(key, *rope)
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    projected: torch.Tensor = attention.to_out[0](out.transpose(1, 2).flatten(2))
    return projected


def per_frame(pair: torch.Tensor, frames: int) -> torch.Tensor:
    """Modulation of the first frame and of the others [B, 2, K, C] to [B, F, K, 1, C]."""
    return torch.cat([pair[:, :1], pair[:, 1:].expand(-1, frames - 1, -1, -1)], 1).unsqueeze(3)


def run_block(
    block: Any, x: torch.Tensor, text: torch.Tensor, bias: torch.Tensor, time: Any, rope: Any
) -> torch.Tensor:
    """One block on x [B, F, S, C]."""
    shape, channels = x.shape, x.shape[-1]
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = per_frame(
        block.scale_shift_table[None] + time, shape[1]
    ).unbind(2)
    normal = (functional.layer_norm(x, (channels,), eps=EPSILON) * (1 + scale) + shift).flatten(1, 2)
    x = x + attend(block.attn1, normal, normal, rope).view(shape) * gate
    normal = functional.layer_norm(x, (channels,), block.norm2.weight, block.norm2.bias, EPSILON).flatten(1, 2)
    x = x + attend(block.attn2, normal, text, bias=bias).view(shape)
    normal = functional.layer_norm(x, (channels,), eps=EPSILON) * (1 + ffn_scale) + ffn_shift
    hidden = functional.gelu(block.ffn.net[0].proj(normal), approximate="tanh")
    out: torch.Tensor = x + block.ffn.net[2](hidden) * ffn_gate
    return out


def velocity(
    dit: Any, latents: torch.Tensor, time: torch.Tensor, text: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The DiT's output [B, C, F, H, W] for latents whose first frame is clean.

    time [B] in 0..1000 of the other frames, text [B, L, C] whose last token stands for the padding, bias [B, 1, 1, L].
    """
    batch, channels, frames, height, width = latents.shape
    rows, columns = height // 2, width // 2
    patches = latents.view(batch, channels, frames, rows, 2, columns, 2).permute(0, 2, 3, 5, 1, 4, 6)
    size = dit.patch_embedding.out_channels
    weight = dit.patch_embedding.weight.view(size, -1)
    x = functional.linear(patches.reshape(batch, frames, rows * columns, -1), weight, dit.patch_embedding.bias)
    cos, sin = dit.rope(latents)
    rope = (cos[0, :, 0, 0::2].float().contiguous(), sin[0, :, 0, 1::2].float().contiguous())
    condition = dit.condition_embedder
    embedded = condition.time_embedder(condition.timesteps_proj(torch.cat([time.new_zeros(1), time])))
    embedded = torch.stack([embedded[:1].expand(batch, size), embedded[1:]], 1)  # [B, 2, C]
    modulation = condition.time_proj(functional.silu(embedded)).view(batch, 2, 6, size)
    context = condition.text_embedder(text)
    for block in dit.blocks:
        x = run_block(block, x, context, bias, modulation, rope)
    shift, scale = per_frame(dit.scale_shift_table[None] + embedded[:, :, None], frames).unbind(2)
    x = dit.proj_out(functional.layer_norm(x, (size,), eps=EPSILON) * (1 + scale) + shift)
    x = x.view(batch, frames, rows, columns, 2, 2, channels).permute(0, 6, 1, 2, 4, 3, 5)
    out: torch.Tensor = x.reshape(latents.shape)
    return out
