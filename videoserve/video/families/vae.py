"""Wan's VAE: our encode and decode over the parameters of diffusers' `AutoencoderKLWan`, both kinds."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from videoserve.video.families.vae_layers import (
    History,
    activated,
    add_duplicated,
    attention_block,
    averaged,
    causal,
    downsample,
    middle,
    residual_block,
    upsample,
)
from videoserve_kernels.comm.rows import Rows

# Frames that become one latent frame, after the first; the convolutions fix it.
TEMPORAL_FACTOR = 4


class WanVae:
    """Encodes and decodes videos, made of a loaded `AutoencoderKLWan`; equal to diffusers' chunked code.

    Works in the module's dtype on its device. `budget_bytes` bounds the memory of the activations: a longer clip goes
    through in chunks of frames, and every convolution remembers the frames before, so the result is the same.
    """

    def __init__(self, module: Any, *, budget_bytes: int = 2**29) -> None:
        self.module = module.eval().requires_grad_(False)
        self.config = module.config
        self.budget_bytes = budget_bytes
        self.patch: int = self.config.patch_size or 1

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.quant_conv.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.module.quant_conv.weight.device
        return device

    @torch.inference_mode()
    def encode(self, video: Tensor, most: int | None = None) -> Tensor:
        """The most likely latents of a video, normalised as the transformer wants them, float32.

        video [B, 3, 4·n + 1, H, W] in -1..1; returns [B, C, n + 1, H / f, W / f]. ValueError for another frame count.
        No chunk makes more than `most` latent frames beside the first one. With 1 all clips go through in the same
        pieces, so that those of at least five frames begin with the same bits where they begin with the same frames.
        """
        frames = video.shape[2]
        if frames % TEMPORAL_FACTOR != 1:
            raise ValueError(f"A clip of {frames} frames cannot be encoded: it must have 4·n + 1.")
        x = self.split_patches(video.to(self.device, self.dtype))
        mean = (
            torch.cat(list(self.through(self.encode_chunk, self.chunks(x, TEMPORAL_FACTOR, x.shape[2:4], most))), dim=1)
            .permute(0, 4, 1, 2, 3)
            .float()
        )
        shift, scale = self.statistics()
        return (mean - shift) * (1.0 / scale)

    def decode(self, latents: Tensor) -> Tensor:
        """The video of normalised latents [B, C, F, h, w]: [B, 3, 4·(F - 1) + 1, H, W] in -1..1, module's dtype."""
        return torch.cat(list(self.pieces(latents)), dim=2)

    @torch.inference_mode()
    def pieces(self, latents: Tensor, most: int | None = None, rows: Rows | None = None) -> Iterator[Tensor]:
        """The same video in consecutive pieces [B, 3, F', H, W], computed as they are asked for.

        A piece is of as many latent frames as the budget allows, and of at most `most`. With `rows` only this rank's
        band of every picture comes out, [B, 3, F', H', W], and every rank that has one asks for its pieces in step
        with the others. Bands, and not stretches of time: a border is a row, the past of a convolution two whole
        frames, and no rank is idle at the end. The one layer that looks at all of a picture, the attention in the
        middle, gets the keys and values of all bands; nothing is computed twice and nothing is left out.
        """
        shift, scale = self.statistics()
        # The same two roundings as diffusers: a division by the reciprocal.
        z = (latents.to(self.device, torch.float32) / (1.0 / scale) + shift).to(self.dtype)
        x = z.permute(0, 2, 3, 4, 1)
        if rows is not None:
            x = x[:, :, rows.here]
        grown = self.config.scale_factor_spatial // self.patch
        size = (x.shape[2] * grown, x.shape[3] * grown)
        for piece in self.through(self.decode_chunk, self.chunks(x, 1, size, most), rows):
            yield self.merge_patches(piece).clamp_(-1.0, 1.0)

    def through(
        self, run: Callable[[Tensor, History], Tensor], chunks: Sequence[Tensor], rows: Rows | None = None
    ) -> Iterator[Tensor]:
        """The results of every chunk of a clip in order, with one history."""
        history = History(rows)
        for number, chunk in enumerate(chunks, start=1):
            history.last_chunk = number == len(chunks)
            yield run(chunk, history)
            history.first_chunk = False

    def chunks(self, x: Tensor, step: int, size: Any, most: int | None = None) -> list[Tensor]:
        """x cut along its frames: 1 + k·step, then k·step each, k as large as the budget and `most` allow.

        `size` is the height and width at which the widest activations live.
        """
        widest = 4 * max(self.config.base_dim, self.config.decoder_base_dim or 0)
        # Three taps side by side, the result and the copies around them.
        frame_bytes = x.shape[0] * size[0] * size[1] * widest * 6 * x.element_size()
        groups = max(1, self.budget_bytes // (TEMPORAL_FACTOR * frame_bytes))
        groups = groups if most is None else min(groups, most)
        first, rest = x[:, : 1 + groups * step], x[:, 1 + groups * step :]
        return [first, *torch.split(rest, groups * step, dim=1)] if rest.shape[1] else [first]

    def encode_chunk(self, x: Tensor, history: History) -> Tensor:
        """[B, F, H, W, C] patches of pixels to the means [B, F', h, w, C_latent] of their latents."""
        encoder = self.module.encoder
        x = causal(encoder.conv_in, x, history)
        for block in encoder.down_blocks:
            x = DOWN[type(block).__name__](block, x, history)
        x = middle(encoder.mid_block, x, history)
        x = causal(encoder.conv_out, activated(encoder.norm_out, x), history)
        x = causal(self.module.quant_conv, x, history)
        return x[..., : self.config.z_dim]

    def decode_chunk(self, x: Tensor, history: History) -> Tensor:
        """[B, F, h, w, C_latent] latents to [B, F', H, W, C] patches of pixels."""
        decoder = self.module.decoder
        x = causal(decoder.conv_in, causal(self.module.post_quant_conv, x, history), history)
        x = middle(decoder.mid_block, x, history)
        for block in decoder.up_blocks:
            x = UP[type(block).__name__](block, x, history)
        x = causal(decoder.conv_out, activated(decoder.norm_out, x), history)
        return x

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latents, float32 [1, C, 1, 1, 1] each."""
        shape = (1, -1, 1, 1, 1)
        mean = torch.tensor(self.config.latents_mean, device=self.device).view(shape)
        return mean, torch.tensor(self.config.latents_std, device=self.device).view(shape)

    def split_patches(self, video: Tensor) -> Tensor:
        """[B, 3, F, H, W] to [B, F, H / p, W / p, 3·p·p]; of a patch the column comes before the row."""
        batch, colours, frames, height, width = video.shape
        p = self.patch
        patches = video.reshape(batch, colours, frames, height // p, p, width // p, p)
        return patches.permute(0, 2, 3, 5, 1, 6, 4).reshape(batch, frames, height // p, width // p, -1)

    def merge_patches(self, x: Tensor) -> Tensor:
        """[B, F, H / p, W / p, 3·p·p] to [B, 3, F, H, W]."""
        batch, frames, height, width, channels = x.shape
        p = self.patch
        patches = x.view(batch, frames, height, width, channels // (p * p), p, p)
        return patches.permute(0, 4, 1, 2, 6, 3, 5).reshape(batch, -1, frames, height * p, width * p)


def down_block(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanResidualDownBlock`."""
    out = x
    for resnet in block.resnets:
        out = residual_block(resnet, out, history)
    if block.downsampler is not None:
        out = downsample(block.downsampler, out, history)
    return out + averaged(block.avg_shortcut, x)


def residual_up_block(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanResidualUpBlock`."""
    out = x
    for resnet in block.resnets:
        out = residual_block(resnet, out, history)
    if block.upsampler is None:
        return out
    return add_duplicated(block.avg_shortcut, x, upsample(block.upsampler, out, history), history)


def up_block(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanUpBlock`."""
    for resnet in block.resnets:
        x = residual_block(resnet, x, history)
    return x if block.upsamplers is None else upsample(block.upsamplers[0], x, history)


Run = Callable[[Any, Tensor, History], Tensor]
DOWN: dict[str, Run] = {
    "WanResidualDownBlock": down_block,
    "WanResidualBlock": residual_block,
    "WanAttentionBlock": attention_block,
    "WanResample": downsample,
}
UP: dict[str, Run] = {"WanResidualUpBlock": residual_up_block, "WanUpBlock": up_block}
