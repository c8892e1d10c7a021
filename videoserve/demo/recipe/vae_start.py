"""Start the VAE as a linear transform in closed form: principal components down, least squares up.

Random starts of this network take an hour on two cores to get where this start is after a minute: the residual
branches are closed, the encoder's strided convolutions become principal components of 2 x 2 blocks and of frame pairs,
and each of the decoder's up-samplers is the least-squares inverse of the encoder's step at that level.
"""

from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock, patchify
from torch.nn import functional, init

from videoserve.demo.recipe.vae_net import CHANNELS, channels_last, encode, resample

# A constant in spare channels keeps the last normalisations near a fixed scale, hence near linear.
ENCODER_CONSTANT = 10.0
DECODER_OFFSET = 4.0
DECODER_CONSTANT = 8.0


def close_residuals(vae: Any) -> None:
    """Zero the last layer of every residual branch and attention."""
    for module in vae.modules():
        if isinstance(module, WanResidualBlock):
            init.zeros_(module.conv2.weight)
            init.zeros_(module.conv2.bias)
            if not isinstance(module.conv_shortcut, torch.nn.Identity):
                weight = module.conv_shortcut.weight
                init.normal_(weight, std=0.01)
                weight.data[:, :, 0, 0, 0] += torch.eye(*weight.shape[:2])
                init.zeros_(module.conv_shortcut.bias)
        elif type(module).__name__ == "WanAttentionBlock":
            init.zeros_(module.proj.weight)
            init.zeros_(module.proj.bias)


def components(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` strongest principal directions of rows [n, d] about zero: [count, d]."""
    rows = rows.double()
    directions: torch.Tensor = torch.linalg.eigh(rows.T @ rows)[1]
    return directions.flip(1)[:, :count].T.float()


def fit(rows: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares targets ~ rows W^T + b with a little ridge: (W [out, in], b [out])."""
    rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1).double()
    gram = rows.T @ rows
    gram += torch.eye(len(gram), dtype=torch.double) * gram.diagonal().mean() * 1e-5
    solution = torch.linalg.solve(gram, rows.T @ targets.double()).float()
    return solution[:-1].T.contiguous(), solution[-1]


def positions(x: torch.Tensor) -> torch.Tensor:
    """[B, C, F, H, W] to one row per position, [n, C]."""
    return x.permute(0, 2, 3, 4, 1).reshape(-1, x.shape[1])


def pairs(x: torch.Tensor) -> torch.Tensor:
    """Frames 1 and 2, 3 and 4, ... side by side in the channels: [B, 2 C, (F - 1) / 2, H, W]."""
    return torch.cat([x[:, :, 1::2], x[:, :, 2::2]], 1)


def start_down(layer: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Set a down-sampler from its input x; returns (what lies between its convolutions, its output)."""
    batch, channels, frames, height, width = x.shape
    blocks = x.view(batch, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    directions = components(blocks.reshape(-1, channels * 4), channels).view(channels, channels, 2, 2)
    conv = layer.resample[1]
    init.zeros_(conv.weight)
    init.zeros_(conv.bias)
    conv.weight.data[:, :, :2, :2] = directions
    still = resample_space(layer, x)
    basis = components(positions(pairs(still)), channels)
    # Turn the components towards the plain mean of both frames, which keeps channels alike in frame 0 and the rest.
    mean = torch.cat([torch.eye(channels), torch.eye(channels)], 1) * 0.5**0.5
    left, _, right = torch.linalg.svd(mean @ basis.T)
    basis = (left @ right) @ basis * 0.5**0.5
    init.zeros_(layer.time_conv.weight)
    init.zeros_(layer.time_conv.bias)
    layer.time_conv.weight.data[:, :, 1, 0, 0] = basis[:, :channels]
    layer.time_conv.weight.data[:, :, 2, 0, 0] = basis[:, channels:]
    return still, resample(layer, x)


def resample_space(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Only the spatial convolution of a resampler."""
    batch, channels, frames, height, width = x.shape
    y: torch.Tensor = layer.resample(x.permute(0, 2, 1, 3, 4).reshape(-1, channels, height, width))
    return y.view(batch, frames, *y.shape[1:]).permute(0, 2, 1, 3, 4)


def start_encoder(vae: Any, clips: torch.Tensor) -> list[torch.Tensor]:
    """Set the encoder; returns the targets of the decoder's steps, deepest first."""
    encoder = vae.encoder
    init.zeros_(encoder.conv_in.bias)
    init.normal_(encoder.conv_in.weight, std=0.002)
    encoder.conv_in.weight.data[:, :, 2, 1, 1] += torch.eye(*encoder.conv_in.weight.shape[:2])
    pixels = patchify(clips, 2)
    x = encoder.conv_in(pixels)
    targets = [pixels]
    for layer in encoder.down_blocks[:-1]:
        if isinstance(layer, WanResidualBlock):
            x = layer.conv_shortcut(x)
        else:
            still, x = start_down(layer, x)
            targets += [still, x]
    shortcut = encoder.down_blocks[-1].conv_shortcut
    directions = components(positions(x), CHANNELS)
    shortcut.weight.data.mul_(0.1)
    shortcut.weight.data[:CHANNELS, :, 0, 0, 0] += directions
    shortcut.weight.data[CHANNELS : 2 * CHANNELS, :, 0, 0, 0] -= directions
    shortcut.weight.data[2 * CHANNELS :] = 0
    shortcut.bias.data[2 * CHANNELS :] = ENCODER_CONSTANT
    length = shortcut(x).norm(dim=1).mean().item()
    # silu(a) - silu(-a) = a: opposite channels pass the components through the last non-linearity unchanged.
    conv = encoder.conv_out
    init.normal_(conv.weight, std=0.002)
    init.zeros_(conv.bias)
    gain = torch.eye(CHANNELS) * length / conv.weight.shape[1] ** 0.5
    conv.weight.data[CHANNELS:] = 0
    conv.weight.data[:CHANNELS, :CHANNELS, 2, 1, 1] += gain
    conv.weight.data[:CHANNELS, CHANNELS : 2 * CHANNELS, 2, 1, 1] -= gain
    conv.bias.data[CHANNELS:] = -6.0
    for layer in (vae.quant_conv, vae.post_quant_conv):
        init.zeros_(layer.bias)
        layer.weight.data = torch.eye(layer.weight.shape[0]).view(layer.weight.shape)
    return targets[::-1]


def start_up(layer: Any, x: torch.Tensor, still: torch.Tensor, out: torch.Tensor) -> None:
    """Set an up-sampler so that x becomes `still` in time and then `out` in space, by least squares."""
    later = functional.pad(x[:, :, 1:], (0, 0, 0, 0, 2, 0))
    taps = torch.cat([later[:, :, k : later.shape[2] - 2 + k] for k in range(3)], 1)
    half = still.shape[1]
    weight, bias = fit(positions(taps), positions(pairs(still)))
    conv, channels = layer.time_conv, x.shape[1]
    init.normal_(conv.weight, std=0.002)
    init.zeros_(conv.bias)
    for frame in range(2):
        into = slice(frame * channels, frame * channels + half)
        part = weight[frame * half : (frame + 1) * half].view(half, 3, channels)
        conv.weight.data[into, :, :, 0, 0] += part.permute(0, 2, 1)
        conv.bias.data[into] = bias[frame * half : (frame + 1) * half]
    init.zeros_(layer.resample[1].weight)
    init.zeros_(layer.resample[1].bias)
    grown = upsampled(layer, x)
    patches = functional.unfold(grown.permute(0, 2, 1, 3, 4).flatten(0, 1), 3, padding=1).permute(0, 2, 1)
    rows = patches.reshape(-1, patches.shape[2])
    chosen = torch.randperm(len(rows))[:20000]
    weight, bias = fit(rows[chosen], positions(out)[chosen])
    space = layer.resample[1]
    init.normal_(space.weight, std=0.002)
    space.weight.data[: out.shape[1]] += weight.view(-1, channels, 3, 3)
    space.bias.data[: out.shape[1]] = bias


def upsampled(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """An up-sampler without its spatial convolution: [B, C, F', 2 H, 2 W]."""
    batch, channels, frames, height, width = x.shape
    later = layer.time_conv(x[:, :, 1:]).view(batch, 2, channels, frames - 1, height, width)
    later = later.permute(0, 2, 3, 1, 4, 5).reshape(batch, channels, 2 * (frames - 1), height, width)
    x = torch.cat([x[:, :, :1], later], 2)
    return functional.interpolate(x, scale_factor=(1, 2, 2), mode="nearest")


def start_decoder(vae: Any, latents: torch.Tensor, targets: list[torch.Tensor]) -> None:
    """Set the decoder so that latents become, step by step, the targets of `start_encoder`."""
    decoder = vae.decoder
    deepest, still_deep, shallow, still_shallow, pixels = targets
    weight, bias = fit(positions(latents), positions(deepest))
    init.normal_(decoder.conv_in.weight, std=0.005)
    init.zeros_(decoder.conv_in.bias)
    decoder.conv_in.weight.data[: len(bias), :, 2, 1, 1] += weight
    decoder.conv_in.bias.data[: len(bias)] = bias
    x = decoder.conv_in(latents)
    start_up(decoder.up_blocks[0].upsamplers[0], x, still_deep, shallow)
    x = resample(decoder.up_blocks[0].upsamplers[0], x)
    last = decoder.up_blocks[1].upsamplers[0]
    start_up(last, x, still_shallow, pixels)
    last.resample[1].bias.data[:12] += DECODER_OFFSET
    last.resample[1].bias.data[12:] = DECODER_CONSTANT
    x = functional.silu(decoder.norm_out(resample(last, x)))
    chosen = torch.randperm(positions(x).shape[0])[:40000]
    weight, bias = fit(positions(x)[chosen], positions(pixels)[chosen])
    init.normal_(decoder.conv_out.weight, std=0.001)
    decoder.conv_out.weight.data[:, :, 2, 1, 1] += weight
    decoder.conv_out.bias.data[:] = bias


@torch.no_grad()
def start(vae: Any, clips: torch.Tensor) -> AutoencoderKLWan:
    """Start from clips [B, 3, 17, H, W] in -1..1 of the training pictures."""
    close_residuals(vae)
    targets = start_encoder(vae, clips)
    start_decoder(vae, encode(vae, clips), targets)
    return channels_last(vae)
