"""Windows, sinks and block masks of flash attention against the float64 formula."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import attend

Fixture = Callable[..., Tensor]
Close = Callable[..., None]


def same(
    q: Tensor, k: Tensor, v: Tensor, close: Close, poisoned: tuple[Tensor, Tensor] | None = None, **options: object
) -> None:
    truth, sums = reference.attend(q.double(), k.double(), v.double(), return_lse=True, **options)
    out, lse = attend(q, *(poisoned or (k, v)), return_lse=True, backend="flash", **options)
    close(out, truth)
    close(lse, sums)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 17, 100])
@pytest.mark.parametrize(("queries", "keys"), [(150, 150), (70, 33)])
def test_windows(causal: bool, window: int, queries: int, keys: int, noise: Fixture, close: Close) -> None:
    q, k, v = noise(1, queries, 2, 32), noise(1, keys, 1, 32), noise(1, keys, 1, 32)
    same(q, k, v, close, causal=causal, window=window)


def test_a_window_over_padded_keys_of_shared_heads(noise: Fixture, close: Close) -> None:
    q, k, v = (noise(3, 90, heads, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
    lengths = torch.tensor([90, 41, 0])
    same(q, k, v, close, window=20, key_lengths=lengths, sinks=noise(4), key_bias=noise(3, 90))


def test_keys_before_the_window_are_never_read(noise: Fixture, close: Close) -> None:
    q, k, v = noise(1, 40, 1, 32), noise(1, 200, 1, 32), noise(1, 200, 1, 32)
    poisoned = k.clone(), v.clone()
    # The first query stands at key 160 and sees ten keys; tiles have 32.
    for tensor in poisoned:
        tensor[:, :128] = torch.nan
    same(q, k, v, close, poisoned, causal=True, window=10)


@pytest.mark.parametrize("causal", [False, True])
def test_sinks(causal: bool, noise: Fixture, close: Close) -> None:
    q, k, v = noise(2, 33, 4, 32), noise(2, 20, 2, 32), noise(2, 20, 2, 32)
    same(q, k, v, close, causal=causal, sinks=torch.tensor([-1.0, 0.5, 30, -torch.inf]))
    # A query that sees no key has its sink alone.
    out, lse = attend(q, k[:, :0], v[:, :0], sinks=torch.arange(4.0), return_lse=True, backend="flash")
    assert (out == 0).all()
    torch.testing.assert_close(lse, torch.arange(4.0).expand(2, 33, 4))


@pytest.mark.parametrize("options", [{}, {"causal": True, "window": 50}])
@pytest.mark.parametrize("masks", [(1, 1), (2, 2)])
def test_block_masks(options: dict[str, object], masks: tuple[int, int], noise: Fixture, close: Close) -> None:
    q, k, v = noise(2, 130, 2, 32), noise(2, 270, 2, 32), noise(2, 270, 2, 32)
    mask = noise(*masks, 2, 3) > 0
    # Every second block of a larger mask: it need not be contiguous.
    mask = mask.repeat_interleave(2, dim=3)[..., ::2]
    mask[:, :, :, 1] = False
    poisoned = k.clone(), v.clone()
    for tensor in poisoned:
        tensor[:, 128:256] = torch.nan
    same(q, k, v, close, poisoned, block_mask=mask, **options)
