"""Causal 3-D and resampling 2-D convolutions of a video VAE, channels last: [B, F, H, W, C].

A CPU computes 3-D convolutions with few channels at a tenth of a matrix product's rate and channels-last 2-D ones at
close to all of it, so the temporal taps become channels: one 2-D convolution over the frames t-2, t-1 and t.
"""

import torch
from torch import Tensor
from torch.nn import functional


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    past: Tensor | None = None,
    leading_zeros: int = 0,
    stride: int = 1,
) -> Tensor:
    """3-D convolution over the frames (leading_zeros zeros, past, x): no frame after the last tap is ever seen.

    x [B, F, H, W, C]; weight [O, C, kF, kH, kW], kH and kW odd; past [B, F', H, W, C]; `stride` is over frames.
    Returns [B, (leading_zeros + F' + F - kF) // stride + 1, H, W, O], zero padded in space to the same size.
    """
    taps = weight.shape[2]
    # A tap that meets nothing but leading zeros adds nothing: a single frame needs the last one only.
    unused = min(leading_zeros, taps - 1) if x.shape[1] == 1 and past is None and stride == 1 else 0
    weight, taps, leading_zeros = weight[:, :, unused:], taps - unused, leading_zeros - unused
    before = [] if past is None else [past]
    if leading_zeros:
        before.insert(0, x.new_zeros(x.shape[0], leading_zeros, *x.shape[2:]))
    frames = torch.cat((*before, x), dim=1) if before else x
    count = (frames.shape[1] - taps) // stride + 1
    seen = [frames[:, tap : tap + (count - 1) * stride + 1 : stride] for tap in range(taps)]
    stacked = torch.cat(seen, dim=-1) if taps > 1 else seen[0]
    return conv2d(stacked, weight.transpose(1, 2).flatten(1, 2), bias, padding=weight.shape[-1] // 2)


def upsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Every pixel doubled in both directions, then a 3×3 convolution with padding 1.

    Two of the three taps of a doubled row fall on the same pixel, so each of the four outputs of a pixel is a 2×2
    convolution of the small picture: 16 products instead of 36. x [B, F, H, W, C], weight [O, C, 3, 3]; returns
    [B, F, 2H, 2W, O].
    """
    even = weight.new_tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    odd = weight.new_tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    phases = [
        torch.einsum("ocij,ai,bj->ocab", weight, rows, columns) for rows in (even, odd) for columns in (even, odd)
    ]
    four_bias = None if bias is None else bias.repeat(4)
    four = conv2d(x, torch.cat(phases), four_bias, padding=1)
    four = torch.unflatten(four, -1, (2, 2, -1))  # [B, F, H+1, W+1, 2, 2, O]
    batch, frames, height, width, _ = x.shape
    out = x.new_empty(batch, frames, height, 2, width, 2, weight.shape[0])
    for row in (0, 1):
        for column in (0, 1):
            out[:, :, :, row, :, column] = four[:, :, row : row + height, column : column + width, row, column]
    return out.flatten(4, 5).flatten(2, 3)


def downsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3×3 convolution with stride 2 and one row and column of zeros after the last.

    x [B, F, H, W, C], weight [O, C, 3, 3]; returns [B, F, H/2, W/2, O].
    """
    return conv2d(functional.pad(x, (0, 0, 0, 1, 0, 1)), weight, bias, padding=0, stride=2)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, *, padding: int, stride: int = 1) -> Tensor:
    """One 2-D convolution of every frame: x [B, F, H, W, C], weight [O, C, kH, kW]; returns [B, F, H', W', O]."""
    images = x.flatten(0, 1).permute(0, 3, 1, 2)
    kernel = weight.contiguous(memory_format=torch.channels_last)
    out = functional.conv2d(images, kernel, bias, padding=padding, stride=stride)
    return torch.unflatten(out.permute(0, 2, 3, 1), 0, x.shape[:2])
