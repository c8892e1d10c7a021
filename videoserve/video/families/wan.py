"""Wan's transformer: our forward over the parameters of diffusers' `WanTransformer3DModel`."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from videoserve.video.families.block import WanBlock
from videoserve.video.families.context import TextContext, pad_text
from videoserve.video.families.middle import MiddleBlocks
from videoserve.video.families.shard import Shard, steps_of
from videoserve_kernels.comm.gather import gather_branches, gather_sequence
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.modulate import modulated_norm
from videoserve_kernels.rope import video_angles


class WanTransformer:
    """One expert, made of a loaded `WanTransformer3DModel`.

    Computes in the module's dtype on the module's device, norms and modulation in float32.
    `clean_first_frame` is the layout's: the first latent frame is at timestep 0.
    """

    def __init__(self, module: Any, *, clean_first_frame: bool) -> None:
        self.module = module.eval().requires_grad_(False)
        self.config = module.config
        self.clean_first_frame = clean_first_frame
        self.blocks = [WanBlock(block, self.config.eps) for block in module.blocks]
        self.turns = lru_cache(maxsize=16)(self.make_turns)
        self.steps = lru_cache(maxsize=16)(self.make_steps)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.module.patch_embedding.weight.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.module.patch_embedding.weight.device
        return device

    @torch.inference_mode()
    def prepare_text(
        self, texts: Sequence[Tensor], text_length: int, *, branches: int = 1, image_embeds: Tensor | None = None
    ) -> TextContext:
        """Everything about text and image that the steps share; once a request and expert.

        `texts` are text encoder outputs without padding, each [n, C_text]; text j·branches + g is branch g of job j.
        `text_length` is what diffusers calls max_sequence_length. `image_embeds` [J, I, C_image] has one row a job;
        with a last image its tokens follow the first's. ValueError for a text longer than text_length.
        """
        rows, key_bias = pad_text(texts, text_length)
        embedder = self.module.condition_embedder
        text = embedder.text_embedder(rows.to(self.device, self.dtype))
        text_keys = [block.text_keys(text) for block in self.blocks]
        image_keys: list[tuple[Tensor, Tensor]] = []
        if image_embeds is not None:
            image = self.embed_image(image_embeds).repeat_interleave(branches, dim=0)
            image_keys = [block.image_keys(image) for block in self.blocks]
        return TextContext(
            keys=tuple(key for key, _ in text_keys),
            values=tuple(value for _, value in text_keys),
            key_bias=key_bias.to(self.device),
            image_keys=tuple(key for key, _ in image_keys),
            image_values=tuple(value for _, value in image_keys),
            branches=branches,
        )

    def embed_image(self, image_embeds: Tensor) -> Tensor:
        """Image encoder outputs [J, I, C_image] as tokens [J, I, C]."""
        embedder = self.module.condition_embedder.image_embedder
        tokens = image_embeds.to(self.device, self.dtype)
        if embedder.pos_embed is not None:
            tokens = tokens + embedder.pos_embed
        embedded: Tensor = embedder.norm2(embedder.ff(embedder.norm1(tokens)))
        return embedded

    def make_turns(self, frames: int, rows: int, columns: int) -> Tensor:
        """The rotary table of a shape in patches, complex64 [S, D/2]; `turns` keeps the last ones."""
        angles = video_angles(frames, rows, columns, self.config.attention_head_dim)
        return torch.polar(torch.ones_like(angles), angles).to(self.device, torch.complex64)

    def make_steps(self, frame_tokens: int, begin: int, end: int) -> Tensor:
        """Which timestep the tokens begin..end of a video have; `steps` keeps the last ones."""
        return steps_of(slice(begin, end), frame_tokens if self.clean_first_frame else 0, self.device)

    def shard(self, grid: tuple[int, int, int], mesh: Mesh) -> Shard:
        """This rank's tokens of a video of `grid` patches."""
        length = prod(grid)
        here = mesh.shard(length)
        steps = self.steps(grid[1] * grid[2], here.start, here.stop)
        return Shard(mesh=mesh, length=length, here=here, turns=self.turns(*grid)[here], steps=steps)

    def row_bytes(self, size: Sequence[int], mesh: Mesh) -> int:
        """Bytes of the tokens that this rank holds of one row of latents of `size` (frames, height, width)."""
        tokens = mesh.lengths(prod(size) // prod(self.config.patch_size))[mesh.sequence.index]
        channels: int = self.config.num_attention_heads * self.config.attention_head_dim
        return tokens * channels * self.dtype.itemsize

    @torch.inference_mode()
    def forward(
        self,
        latents: Tensor,
        timesteps: Tensor,
        context: TextContext,
        mesh: Mesh,
        middle: MiddleBlocks | None = None,
    ) -> Tensor:
        """The velocity of every job and guidance branch, the same on every rank of the mesh.

        latents [J, C_in, F, H, W] (see Conditioning.model_input); timesteps [J], the scheduler's, each job at its own;
        context of the same jobs, with the branches that this rank's part of the mesh computes: both, or with cfg 2 its
        own. Returns [J · branches, C_out, F, H, W] in the module's dtype, cond and uncond of each job in turn. `middle`
        may leave out blocks of the only job.
        """
        frames, height, width = latents.shape[2:]
        _, patch_height, patch_width = self.config.patch_size
        grid = frames, height // patch_height, width // patch_width
        shard = self.shard(grid, mesh)
        x = self.embed_patches(latents.to(self.device, self.dtype), shard)  # [J, S, C]
        if middle is not None:
            middle.begin(x, len(self.blocks))
        time, steps = self.embed_timesteps(timesteps.to(self.device))
        # Guidance branches differ by their text only, so they part at the first cross-attention.
        first = self.blocks[0]
        x = first.self_attention(x, first.modulation(steps), shard)
        x, time, steps = (t.repeat_interleave(context.branches, dim=0) for t in (x, time, steps))  # [R, ...]
        for layer, block in enumerate(self.blocks):
            if middle is not None:
                x = middle.at(layer, x)
                if middle.leaves_out(layer):
                    continue
            table = block.modulation(steps)
            if layer > 0:
                x = block.self_attention(x, table, shard)
            x = block.cross_attention(x, context, layer)
            x = block.feed_forward(x, table, shard)
        if middle is not None:
            x = middle.at(len(self.blocks), x)
        patches = gather_sequence(self.project_out(x, time, shard), mesh, length=shard.length)
        return self.unpatch(gather_branches(patches, mesh), grid)

    def embed_patches(self, latents: Tensor, shard: Shard) -> Tensor:
        """[J, C_in, F, H, W] to the shard's tokens [J, S, C]; the strided convolution is a linear over the patches."""
        _, patch_height, patch_width = self.config.patch_size
        convolution = self.module.patch_embedding
        jobs, channels, frames, height, width = latents.shape
        patches = latents.reshape(
            jobs, channels, frames, height // patch_height, patch_height, width // patch_width, patch_width
        )
        tokens = patches.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)
        return functional.linear(tokens[:, shard.here], convolution.weight.flatten(1), convolution.bias)

    def embed_timesteps(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [J, K, C] and block modulations float32 [J, K, 6, C] of the K distinct timesteps of a job."""
        distinct = timesteps[:, None].float()
        if self.clean_first_frame:
            distinct = torch.cat((torch.zeros_like(distinct), distinct), dim=1)
        # Products of a few rows round differently with the number of rows: a job must not depend on its company.
        times, steps = zip(*(self.embed_distinct(mine) for mine in distinct), strict=True)
        return torch.stack(times), torch.stack(steps)

    def embed_distinct(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings [K, C] and block modulations float32 [K, 6, C] of the timesteps [K] of one job."""
        embedder = self.module.condition_embedder
        waves = embedder.timesteps_proj(timesteps).to(embedder.time_embedder.linear_1.weight.dtype)
        time = embedder.time_embedder(waves).to(self.dtype)
        steps = torch.unflatten(embedder.time_proj(functional.silu(time)), -1, (6, -1))
        return time, steps.float()

    def project_out(self, x: Tensor, time: Tensor, shard: Shard) -> Tensor:
        """Tokens [R, S, C] to patches of velocity [R, S, patch · C_out]."""
        shift, scale = (self.module.scale_shift_table.float() + time.float().unsqueeze(2)).unbind(dim=2)
        normal = modulated_norm(x, shift, scale, shard.steps, eps=self.config.eps)
        projected: Tensor = self.module.proj_out(normal)
        return projected

    def unpatch(self, patches: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """[R, S, patch · C_out] to [R, C_out, F, H, W]."""
        _, patch_height, patch_width = self.config.patch_size
        pixels = patches.reshape(patches.shape[0], *grid, patch_height, patch_width, -1)
        return pixels.permute(0, 6, 1, 2, 4, 3, 5).flatten(5).flatten(3, 4)
