"""The layers of Wan's VAE over diffusers' modules. Activations are [B, F, H, W, C]: channels last."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from videoserve_kernels.attention import attend
from videoserve_kernels.comm.rows import Rows
from videoserve_kernels.conv import causal_conv, downsampled_conv, upsampled_conv
from videoserve_kernels.norm import rms_norm

# diffusers divides by max(norm, 1e-12): under the root of a mean this is far below any real activation.
NORM_EPS = 1e-24


class History:
    """What a clip's next chunk needs of the chunks before it: the last frames that each causal convolution saw.

    With `rows` this rank has a band of rows of every picture. A convolution over space sees one row beyond it, of each
    frame as it passes, so that what is remembered has its borders already.
    """

    def __init__(self, rows: Rows | None = None) -> None:
        self.rows = None if rows is None or rows.whole else rows
        self.first_chunk = True
        self.last_chunk = False
        self.frames: dict[Any, Tensor] = {}

    def past(self, convolution: Any) -> Tensor | None:
        """The frames [B, F, H, W, C] remembered for this convolution; None before it has seen any."""
        return self.frames.get(convolution)

    def remember(self, convolution: Any, x: Tensor, count: int) -> None:
        """Keeps the last `count` frames that the convolution has now seen."""
        if self.last_chunk:
            return
        past = self.past(convolution)
        if past is not None and x.shape[1] < count:
            x = torch.cat((past, x), dim=1)
        self.frames[convolution] = x[:, -count:].clone()


def causal(conv: Any, x: Tensor, history: History) -> Tensor:
    """A `WanCausalConv3d` that goes on where the chunk before ended, zeros before the first frame."""
    reach = conv.kernel_size[0] - 1
    past = history.past(conv)
    zeros = reach - (0 if past is None else past.shape[1])
    borders = history.rows is not None and conv.kernel_size[1] > 1
    if history.rows is not None and borders:
        x = history.rows.with_borders(x)
    out = causal_conv(x, conv.weight, conv.bias, past=past, leading_zeros=zeros, borders=borders)
    if reach:
        history.remember(conv, x, reach)
    return out


def normalised(norm: Any, x: Tensor) -> Tensor:
    """A `WanRMS_norm` over the channels."""
    return rms_norm(x, norm.gamma.flatten(), eps=NORM_EPS)


def activated(norm: Any, x: Tensor) -> Tensor:
    """A `WanRMS_norm` and the SiLU that always follows it."""
    return functional.silu(normalised(norm, x), inplace=True)


def residual_block(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanResidualBlock`."""
    shortcut = x if isinstance(block.conv_shortcut, torch.nn.Identity) else causal(block.conv_shortcut, x, history)
    out = causal(block.conv1, activated(block.norm1, x), history)
    out = causal(block.conv2, activated(block.norm2, out), history)
    return out.add_(shortcut)


def attention_block(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanAttentionBlock`: one head over the pixels of each frame."""
    pixels = normalised(block.norm, x).flatten(0, 1).flatten(1, 2)  # [B·F, H·W, C]
    qkv = functional.linear(pixels, block.to_qkv.weight.flatten(1), block.to_qkv.bias)
    q, k, v = qkv.unsqueeze(2).chunk(3, dim=-1)
    if history.rows is not None:
        k, v = history.rows.everywhere(qkv[..., q.shape[-1] :]).unsqueeze(2).chunk(2, dim=-1)
    out = attend(q, k, v).flatten(2)
    return functional.linear(out, block.proj.weight.flatten(1), block.proj.bias).view(x.shape).add_(x)


def middle(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanMidBlock`."""
    x = residual_block(block.resnets[0], x, history)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = residual_block(resnet, attention_block(attention, x, history), history)
    return x


def upsample(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanResample` that doubles the pixels and, with time_conv, the frames but the clip's first."""
    if block.mode == "upsample3d":
        kept, rest = (x[:, :1], x[:, 1:]) if history.first_chunk else (x[:, :0], x)
        if rest.shape[1]:
            pairs = torch.unflatten(causal(block.time_conv, rest, history), -1, (2, -1))  # [B, F, H, W, 2, C]
            frames = pairs.permute(0, 1, 4, 2, 3, 5).flatten(1, 2)
            x = torch.cat((kept, frames), dim=1)
    conv = block.resample[1]
    if history.rows is not None:
        return upsampled_conv(history.rows.with_borders(x), conv.weight, conv.bias, borders=True)
    return upsampled_conv(x, conv.weight, conv.bias)


def downsample(block: Any, x: Tensor, history: History) -> Tensor:
    """A `WanResample` that halves the pixels and, with time_conv, the frames but the clip's first."""
    conv = block.resample[1]
    x = downsampled_conv(x, conv.weight, conv.bias)
    if block.mode == "downsample2d":
        return x
    time_conv = block.time_conv
    past = history.past(time_conv)
    history.remember(time_conv, x, 1)
    if past is not None:
        return causal_conv(x, time_conv.weight, time_conv.bias, past=past, stride=2)
    if x.shape[1] == 1:
        return x
    return torch.cat((x[:, :1], causal_conv(x, time_conv.weight, time_conv.bias, stride=2)), dim=1)


def averaged(shortcut: Any, x: Tensor) -> Tensor:
    """An `AvgDown3D`: cubes of pixels become channels, and neighbouring channels are averaged."""
    time, space = shortcut.factor_t, shortcut.factor_s
    x = functional.pad(x, (0, 0, 0, 0, 0, 0, -x.shape[1] % time, 0))
    batch, frames, height, width, channels = x.shape
    cubes = x.view(batch, frames // time, time, height // space, space, width // space, space, channels)
    cubes = cubes.permute(0, 1, 3, 5, 7, 2, 4, 6).flatten(4)
    return torch.unflatten(cubes, -1, (shortcut.out_channels, -1)).mean(dim=-1)


def add_duplicated(shortcut: Any, x: Tensor, out: Tensor, history: History) -> Tensor:
    """Adds a `DupUp3D` of x, channels become cubes of pixels, to `out` in place."""
    time, space = shortcut.factor_t, shortcut.factor_s
    batch, frames, height, width, _ = x.shape
    spread = x.repeat_interleave(shortcut.repeats, dim=-1).view(batch, frames, height, width, -1, time, space, space)
    spread = spread.permute(0, 1, 5, 2, 6, 3, 7, 4)  # [B, F, time, H, space, W, space, C]
    # Of the clip's first frame only the last copy is kept.
    first = 1 if history.first_chunk else 0
    kept = (batch, first, 1, height, space, width, space, out.shape[-1])
    out[:, :first].view(kept).add_(spread[:, :first, -1:])
    out[:, first:].view(batch, frames - first, time, *kept[3:]).add_(spread[:, first:])
    return out
