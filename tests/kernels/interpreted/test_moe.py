"""The experts' kernels against the float64 formula: few and many tokens an expert, experts without any, odd sizes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import moe_kernel
from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.moe import run_experts

Noise = Callable[..., Tensor]
Close = Callable[..., None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "kept", "experts"), [(1, 1, 1), (9, 3, 6), (70, 2, 2)])
def test_equals_the_formula(
    tokens: int, kept: int, experts: int, dtype: torch.dtype, noise: Noise, close: Close
) -> None:
    # A slice of something wider.
    x, weights = noise(tokens, 90, dtype=dtype)[:, :70], noise(tokens, kept, dtype=dtype).abs()
    gate_up, down = 0.2 * noise(experts, 74, 70, dtype=dtype), 0.2 * noise(experts, 70, 37, dtype=dtype)
    chosen = torch.randint(0, max(experts - 1, 1), (tokens, kept), generator=torch.Generator().manual_seed(1))
    if experts > 1:
        # Nobody takes the last one.
        down[-1] = torch.nan
    truth = run_experts(
        x.double(), chosen, weights.double(), gate_up.double(), down.double(), limit=0.8, backend="reference"
    )
    close(run_experts(x, chosen, weights, gate_up, down, limit=0.8, backend="triton"), truth)


@pytest.mark.parametrize("size", [16, 64])
def test_tiles_hold_every_pick_once_and_one_expert_each(size: int) -> None:
    picks = torch.tensor([5] * 70 + [0] * 16 + [2] * 17 + [5, 0, 7])
    plan = moe_kernel.schedule(picks, 9, size)
    seen: list[int] = []
    for expert, first in zip(plan.experts.tolist(), plan.firsts.tolist(), strict=True):
        if expert < 9:
            tile = plan.order[first : min(first + size, int(plan.ends[expert]))].tolist()
            assert tile
            assert {int(picks[i]) for i in tile} == {expert}
            seen += tile
    assert sorted(seen) == list(range(len(picks)))


def test_one_token_has_the_same_bits_among_others(noise: Noise) -> None:
    x, weights, chosen = noise(6, 40), noise(6, 2).abs(), torch.tensor([[0, 1], [1, 2], [2, 0]] * 2)
    gate_up, down = noise(3, 20, 40), noise(3, 40, 10)
    together = run_experts(x, chosen, weights, gate_up, down, limit=1.0, backend="triton")
    alone = run_experts(x[:1], chosen[:1], weights[:1], gate_up, down, limit=1.0, backend="triton")
    assert torch.equal(together[:1], alone)


def test_nan_stays_in_its_token(noise: Noise) -> None:
    x, weights, chosen = noise(3, 40), noise(3, 2).abs(), torch.tensor([[0, 1]] * 3)
    x[1, 5] = torch.nan
    out = run_experts(x, chosen, weights, noise(2, 20, 40), noise(2, 40, 10), limit=1.0, backend="triton")
    assert out[1].isnan().all()
    assert out[[0, 2]].isfinite().all()


def test_no_tokens_and_two_types(noise: Noise) -> None:
    none = torch.empty(0, 2, dtype=torch.int64)
    weights = noise(2, 20, 40), noise(2, 40, 10)
    assert run_experts(noise(0, 40), none, noise(0, 2), *weights, limit=1.0, backend="triton").shape == (0, 40)
    with pytest.raises(BackendUnavailableError, match=r"one type, not torch\.bfloat16, torch\.float32"):
        run_experts(noise(0, 40, dtype=torch.bfloat16), none, noise(0, 2), *weights, limit=1.0, backend="triton")
