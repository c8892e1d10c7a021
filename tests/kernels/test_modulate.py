"""Modulation with a table of a few timesteps against the table of every token, written out, in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.modulate import gated_residual, modulated_norm

Fixture = Callable[..., Tensor]
CASES = [(1, 1, 1, 3, [0]), (2, 3, 5, 13, [0, 1, 1]), (3, 4, 2, 8, [2, 0, 1, 1]), (2, 2, 0, 8, [0, 1])]


@pytest.mark.parametrize(("batch", "frames", "pixels", "channels", "index"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(
    batch: int,
    frames: int,
    pixels: int,
    channels: int,
    index: list[int],
    dtype: torch.dtype,
    noise: Fixture,
    close: Callable[..., None],
) -> None:
    x, y = (noise(batch, frames * pixels, channels, dtype=dtype) for _ in range(2))
    shift, scale, gate = (noise(batch, max(index) + 1, channels) for _ in range(3))
    frame_index = torch.tensor(index)
    normal = modulated_norm(x, shift, scale, frame_index, eps=1e-6)
    total = gated_residual(x, y, gate, frame_index)
    assert normal.dtype == total.dtype == dtype
    wide = reference.modulated_norm(x.double(), shift.double(), scale.double(), frame_index, eps=1e-6)
    close(normal, wide)
    close(total, reference.gated_residual(x.double(), y.double(), gate.double(), frame_index))


def test_a_frame_takes_its_own_row_of_the_table(noise: Fixture) -> None:
    x = noise(1, 6, 4)
    gate = torch.tensor([0.0, 2.0]).view(1, 2, 1).expand(1, 2, 4)
    out = gated_residual(x, torch.ones_like(x), gate, torch.tensor([0, 1, 0]))
    torch.testing.assert_close(out - x, torch.tensor([0.0, 0, 2, 2, 0, 0]).view(1, 6, 1).expand(1, 6, 4))
