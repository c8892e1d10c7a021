"""The forecast of skipped steps: exact on polynomials of its order, wherever the anchors are."""

import random

import pytest
import torch
from torch import Tensor

from tests.toy_denoiser import even
from videoserve_cache.steps.extrapolate import Anchor, extrapolate, foretold
from videoserve_cache.steps.forecast import Axis, Forecast


def polynomial(coefficients: Tensor, place: float) -> Tensor:
    return sum((c * place**power for power, c in enumerate(coefficients)), torch.zeros(coefficients.shape[1:]))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_exact_on_polynomials_with_uneven_anchors(order: int) -> None:
    for seed in range(40):
        places = random.Random(seed).sample(range(30), order + 2)
        coefficients = torch.randn(order + 1, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = [polynomial(coefficients, place / 10) for place in places]
        got = extrapolate(values[:-1], [place / 10 for place in places[:-1]], places[-1] / 10)
        torch.testing.assert_close(got, values[-1], atol=1e-9, rtol=1e-9)


def test_a_square_is_49_at_7() -> None:
    # Two popular implementations say 47: they divide by the distance of the last two anchors alone.
    values = [torch.tensor(place**2, dtype=torch.float64) for place in (0.0, 2.0, 5.0)]
    assert extrapolate(values, [0.0, 2.0, 5.0], 7.0).item() == 49.0


def test_a_polynomial_of_higher_order_is_missed() -> None:
    values = [torch.tensor(place**2) for place in (0.0, 1.0)]
    assert extrapolate(values, [0.0, 1.0], 2.0).item() == 2.0


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_values_give_that_value_to_the_last_bit(order: int, dtype: torch.dtype) -> None:
    value = torch.randn(50, generator=torch.Generator().manual_seed(1)).to(dtype)
    got = extrapolate([value] * (order + 1), [0.9, 0.71, 0.3][: order + 1], 0.123)
    assert got.dtype == torch.float32
    assert torch.equal(got.to(dtype), value)


@pytest.mark.parametrize("axis", ["sigma", "step"])
def test_weights_are_those_of_the_forecast(axis: Axis) -> None:
    schedule = even(9)
    forecast = Forecast(order=2, axis=axis)
    steps = [0, 1, 3, 4]
    values = [torch.randn(5, generator=torch.Generator().manual_seed(step), dtype=torch.float64) for step in steps]
    anchors = [Anchor(step, schedule.sigmas[step], value) for step, value in zip(steps, values, strict=True)]
    weights = forecast.weights(steps, schedule.sigmas, 6)
    expected = sum((w * v for w, v in zip(weights, values, strict=True)), torch.zeros(5))
    torch.testing.assert_close(foretold(forecast, anchors, schedule.at(6)), expected)
    assert weights[0] == 0.0
    assert sum(weights) == pytest.approx(1.0)


def test_the_newer_value_counts_where_a_solver_comes_to_a_sigma_twice() -> None:
    anchors = [Anchor(0, 0.9, torch.tensor(5.0)), Anchor(1, 0.5, torch.tensor(1.0)), Anchor(2, 0.5, torch.tensor(3.0))]
    assert foretold(Forecast(order=1), anchors, even(8).at(7)).isfinite()
    assert foretold(Forecast(order=0), anchors, even(8).at(7)).item() == 3.0


@pytest.mark.parametrize(("field", "value"), [("order", 3), ("axis", "time"), ("of", "velocity")])
def test_says_what_is_allowed(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value!r}; allowed: "):
        Forecast(**{field: value})  # type: ignore[arg-type]
