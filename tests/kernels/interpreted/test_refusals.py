"""What the kernels cannot take, in sentences that name the value; the device is in order here."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.attention import attend
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.low_rank import add_low_rank
from videoserve_kernels.norm import rms_norm

Fixture = Callable[..., Tensor]


def test_flash_names_the_head_dim_it_cannot_take(noise: Fixture) -> None:
    q = noise(1, 2, 1, 12)
    with pytest.raises(BackendUnavailableError, match="32, 64 or 128 channels a head, not 12"):
        attend(q, q, q, backend="flash")


def test_a_norm_names_the_channels_it_cannot_take(noise: Fixture) -> None:
    with pytest.raises(BackendUnavailableError, match="up to 16384 channels, not 20000"):
        rms_norm(noise(2, 20000), noise(20000), eps=1e-6, backend="triton")


def test_the_low_rank_addition_names_the_rank_and_the_types(noise: Fixture) -> None:
    x, y = noise(2, 8), noise(2, 8)
    with pytest.raises(BackendUnavailableError, match="ranks up to 128, not 200"):
        add_low_rank(y, x, noise(200, 8), noise(8, 200), backend="triton")
    with pytest.raises(BackendUnavailableError, match=r"one type, not torch\.float32, torch\.float32"):
        add_low_rank(y, x, noise(4, 8, dtype=torch.bfloat16), noise(8, 4), backend="triton")
