"""Routing and experts on a CPU against the formulas in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.moe import route, run_experts

Noise = Callable[..., Tensor]
Close = Callable[..., None]


@pytest.mark.parametrize("biased", [False, True])
def test_a_token_takes_the_experts_of_the_formula(biased: bool, noise: Noise, close: Close) -> None:
    logits, bias = 3 * noise(11, 7), noise(7) if biased else None
    truth = route(
        logits.double(), count=3, scale=1.5, bias=None if bias is None else bias.double(), backend="reference"
    )
    chosen, weights = route(logits, count=3, scale=1.5, bias=bias)
    order, true_order = chosen.argsort(dim=1), truth[0].argsort(dim=1)
    assert torch.equal(chosen.gather(1, order), truth[0].gather(1, true_order))
    close(weights.gather(1, order), truth[1].gather(1, true_order))
    torch.testing.assert_close(weights.sum(dim=1), torch.full((11,), 1.5))


def test_a_bias_chooses_but_does_not_weigh(noise: Noise) -> None:
    logits, bias = noise(5, 6), torch.tensor([0.0, 0, 0, 0, 9, 9])
    chosen, weights = route(logits, count=2, scale=1.0, bias=bias)
    assert chosen.sort(dim=1).values.tolist() == [[4, 5]] * 5
    known, same = route(logits, count=2, scale=1.0, chosen=chosen)
    assert torch.equal(known, chosen)
    torch.testing.assert_close(weights, same)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_equal_the_formula(dtype: torch.dtype, noise: Noise, close: Close) -> None:
    x, weights = noise(9, 10, dtype=dtype), noise(9, 3, dtype=dtype).abs()
    gate_up, down = 0.5 * noise(6, 14, 10, dtype=dtype), 0.5 * noise(6, 10, 7, dtype=dtype)
    # Expert 5 gets nobody; a token that names one expert twice gets it twice.
    chosen = torch.randint(0, 5, (9, 3), generator=torch.Generator().manual_seed(1))
    assert any(len(set(row)) < 3 for row in chosen.tolist())
    down[5] = torch.nan
    truth = run_experts(
        x.double(), chosen, weights.double(), gate_up.double(), down.double(), limit=0.8, backend="reference"
    )
    close(run_experts(x, chosen, weights, gate_up, down, limit=0.8), truth)


def test_gates_are_limited_above_and_rows_on_both_sides(noise: Noise) -> None:
    one, chosen = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64)
    for gate, up, expected in ((50.0, 50.0, 4.0), (50.0, -50.0, -4.0), (-50.0, 1.0, 0.0)):
        gate_up = torch.tensor([[[gate], [up]]])
        for backend in ("torch", "reference"):
            got = run_experts(one, chosen, one, gate_up, torch.ones(1, 1, 1), limit=2.0, backend=backend)
            assert float(got) == pytest.approx(expected, rel=0.2, abs=1e-6)


def test_no_tokens(noise: Noise) -> None:
    none = torch.empty(0, 2, dtype=torch.int64)
    out = run_experts(noise(0, 10), none, noise(0, 2), noise(6, 14, 10), noise(6, 10, 7), limit=1.0)
    assert out.shape == (0, 10)
