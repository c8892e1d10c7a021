"""Norm over all heads and rotary embedding as one door."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.norm_rope import rms_norm_rotate

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("batch", "tokens", "heads", "head_dim"), [(1, 1, 1, 2), (2, 5, 3, 12), (2, 0, 2, 8)])
def test_equals_the_formula(
    backend: str, batch: int, tokens: int, heads: int, head_dim: int, noise: Fixture, close: Callable[..., None]
) -> None:
    x, weight = noise(batch, tokens, heads * head_dim), noise(heads * head_dim)
    angles = noise(tokens, head_dim // 2, dtype=torch.float64) * 9
    turns, narrow = torch.polar(torch.ones_like(angles), angles), torch.polar(torch.ones(()), angles.float())
    got = rms_norm_rotate(x, weight, narrow, eps=1e-6, backend=backend)
    normal = reference.rms_norm(x.double(), weight.double(), eps=1e-6).view(batch, tokens, heads, head_dim)
    close(got, reference.rotate(normal, turns))
    got = rms_norm_rotate(x, weight[:head_dim], narrow, eps=1e-6, halves=True, backend=backend)
    each = x.double().view(batch, tokens, heads, head_dim)
    close(got, reference.rotate(reference.rms_norm(each, weight[:head_dim].double(), eps=1e-6), turns, halves=True))


def test_the_kernel_says_why_it_cannot_run(noise: Fixture) -> None:
    turns = torch.ones(2, 4, dtype=torch.complex64)
    with pytest.raises(BackendUnavailableError, match="a tensor is on cpu"):
        rms_norm_rotate(noise(1, 2, 8), noise(8), turns, eps=1e-6, backend="triton")
