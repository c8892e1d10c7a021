"""Causal 3-D and resampling 2-D convolutions of a video VAE, channels last: [B, F, H, W, C].

A CPU computes 3-D convolutions with few channels at a tenth of a matrix product's rate and channels-last 2-D ones at
close to all of it, so a 3-D convolution is the sum of a 2-D one for every temporal tap.
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
    borders: bool = False,
) -> Tensor:
    """3-D convolution over the frames (leading_zeros zeros, past, x): no frame after the last tap is ever seen.

    x [B, F, H, W, C]; weight [O, C, kF, kH, kW], kH and kW odd; past [B, F', H, W, C]; `stride` is over frames.
    Returns [B, (leading_zeros + F' + F - kF) // stride + 1, H, W, O], zero padded in space to the same size. With
    `borders` the first and last kH // 2 rows of x and past are what lies beyond a band of rows: seen, not computed.
    """
    frames = x if past is None else torch.cat((past, x), dim=1)
    taps, padding = weight.shape[2], (0 if borders else weight.shape[-2] // 2, weight.shape[-1] // 2)
    count = (leading_zeros + frames.shape[1] - taps) // stride + 1
    # Output t meets input t·stride + tap - leading_zeros; the last tap never meets the zeros.
    out = conv2d(tap_frames(frames, taps - 1, 0, count, leading_zeros, stride), weight[:, :, -1], bias, padding=padding)
    for tap in range(taps - 1):
        # Outputs before `start` meet a zero frame at this tap: nothing to add.
        start = max(0, -((tap - leading_zeros) // stride))
        if start < count:
            seen = tap_frames(frames, tap, start, count, leading_zeros, stride)
            out[:, start:].add_(conv2d(seen, weight[:, :, tap], None, padding=padding))
    return out


def tap_frames(frames: Tensor, tap: int, start: int, count: int, leading_zeros: int, stride: int) -> Tensor:
    """The frames that outputs start..count-1 meet at one tap."""
    first = start * stride + tap - leading_zeros
    return frames[:, first : first + (count - 1 - start) * stride + 1 : stride]


def upsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None, *, borders: bool = False) -> Tensor:
    """Every pixel doubled in both directions, then a 3×3 convolution with padding 1.

    Two of the three taps of a doubled row fall on the same pixel, so each of the four outputs of a pixel is a 2×2
    convolution of the small picture: 16 products instead of 36. x [B, F, H, W, C], weight [O, C, 3, 3]; returns
    [B, F, 2H, 2W, O]. With `borders` the first and last row of x lie beyond a band of rows, as in causal_conv.
    """
    kernels = [columns for rows in folded(weight, 2) for columns in folded(rows, 3)]
    four = conv2d(x, torch.cat(kernels), None if bias is None else bias.repeat(4), padding=(0 if borders else 1, 1))
    four = torch.unflatten(four, -1, (2, 2, -1))  # [B, F, H+1, W+1, 2, 2, O]
    batch, frames, height, width, _ = x.shape
    height -= 2 * borders
    out = x.new_empty(batch, frames, height, 2, width, 2, weight.shape[0])
    for row in (0, 1):
        for column in (0, 1):
            out[:, :, :, row, :, column] = four[:, :, row : row + height, column : column + width, row, column]
    return out.flatten(4, 5).flatten(2, 3)


def folded(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Three taps over doubled pixels as two taps over the pixels, for the even and for the odd output."""
    first, second, third = weight.unbind(dim)
    return torch.stack((first, second + third), dim), torch.stack((first + second, third), dim)


def downsampled_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3×3 convolution with stride 2 and one row and column of zeros after the last.

    x [B, F, H, W, C], weight [O, C, 3, 3]; returns [B, F, H/2, W/2, O].
    """
    return conv2d(functional.pad(x, (0, 0, 0, 1, 0, 1)), weight, bias, padding=(0, 0), stride=2)


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, *, padding: tuple[int, int], stride: int = 1) -> Tensor:
    """One 2-D convolution of every frame: x [B, F, H, W, C], weight [O, C, kH, kW]; returns [B, F, H', W', O]."""
    if weight.shape[2:] == (1, 1):
        # Of more axes, some not contiguous, torch would make a batch of small products.
        return functional.linear(x.reshape(-1, x.shape[-1]), weight.flatten(1), bias).view(*x.shape[:-1], -1)
    images = x.flatten(0, 1).permute(0, 3, 1, 2)
    kernel = weight.contiguous(memory_format=torch.channels_last)
    out = functional.conv2d(images, kernel, bias, padding=padding, stride=stride)
    return torch.unflatten(out.permute(0, 2, 3, 1), 0, x.shape[:2])
