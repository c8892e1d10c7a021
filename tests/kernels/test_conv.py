"""Convolutions of a video VAE against torch's 3-D convolution in float64, and chunks against the whole clip."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.conv import causal_conv, downsampled_conv, upsampled_conv

Fixture = Callable[..., Tensor]


def double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


@pytest.mark.parametrize("kernel", [(3, 3, 3), (3, 1, 1), (1, 1, 1), (1, 3, 3)])
@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("past_frames", [0, 1, 2])
@pytest.mark.parametrize("batch", [1, 2])
def test_causal_conv_equals_the_formula(
    kernel: tuple[int, int, int],
    frames: int,
    past_frames: int,
    batch: int,
    noise: Fixture,
    close: Callable[..., None],
) -> None:
    x, weight, bias = noise(batch, frames, 5, 7, 6), noise(9, 6, *kernel) * 0.2, noise(9)
    past = noise(batch, past_frames, 5, 7, 6) if past_frames else None
    zeros = max(0, kernel[0] - 1 - past_frames)
    got = causal_conv(x, weight, bias, past=past, leading_zeros=zeros)
    truth = reference.causal_conv(x.double(), weight.double(), bias.double(), past=double(past), leading_zeros=zeros)
    close(got, truth)


@pytest.mark.parametrize(("frames", "past_frames"), [(3, 0), (5, 0), (9, 0), (2, 1), (4, 1)])
def test_causal_conv_with_a_stride_over_frames(
    frames: int, past_frames: int, noise: Fixture, close: Callable[..., None]
) -> None:
    x, weight, bias = noise(2, frames, 3, 4, 6), noise(6, 6, 3, 1, 1), noise(6)
    past = noise(2, past_frames, 3, 4, 6) if past_frames else None
    got = causal_conv(x, weight, bias, past=past, stride=2)
    close(got, reference.causal_conv(x.double(), weight.double(), bias.double(), past=double(past), stride=2))


def test_chunks_with_their_past_equal_the_whole_clip(noise: Fixture) -> None:
    x, weight, bias = noise(1, 9, 6, 4, 5), noise(8, 5, 3, 3, 3) * 0.2, noise(8)
    whole = causal_conv(x, weight, bias, leading_zeros=2)
    chunks = [causal_conv(x[:, :1], weight, bias, leading_zeros=2)]
    chunks.append(causal_conv(x[:, 1:5], weight, bias, past=x[:, :1], leading_zeros=1))
    chunks.append(causal_conv(x[:, 5:], weight, bias, past=x[:, 3:5]))
    torch.testing.assert_close(torch.cat(chunks, dim=1), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (8, 6)])
@pytest.mark.parametrize("batch", [1, 2])
def test_resampling_equals_the_formula(
    size: tuple[int, int], batch: int, noise: Fixture, close: Callable[..., None]
) -> None:
    weight, bias = noise(7, 6, 3, 3) * 0.2, noise(7)
    x = noise(batch, 3, *size, 6)
    close(upsampled_conv(x, weight, bias), reference.upsampled_conv(x.double(), weight.double(), bias.double()))
    even = noise(batch, 3, 2 * size[0], 2 * size[1], 6)
    close(
        downsampled_conv(even, weight, bias), reference.downsampled_conv(even.double(), weight.double(), bias.double())
    )


def test_no_frame_sees_a_later_one(noise: Fixture) -> None:
    x, weight, bias = noise(1, 6, 4, 4, 5), noise(8, 5, 3, 3, 3), noise(8)
    later = x.clone()
    later[:, 3:] = torch.nan
    before = causal_conv(later, weight, bias, leading_zeros=2)[:, :3]
    torch.testing.assert_close(before, causal_conv(x, weight, bias, leading_zeros=2)[:, :3])
