"""The indexer's choice on a CPU against the formula in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.indexer import top_entries

Noise = Callable[..., Tensor]
PLACES = torch.tensor([[4, 1, 9, 0, 0, 0], [2, 3, 5, 6, 7, 8]])
ROWS = torch.tensor([1, 1, 1, 0, 0], dtype=torch.int32)
SEEN = torch.tensor([4, 5, 6, 0, 3])


@pytest.mark.parametrize("count", [1, 2, 4, 6, 9])
def test_chooses_what_the_formula_chooses(count: int, noise: Noise) -> None:
    q, weights, keys = noise(5, 3, 8), noise(5, 3), noise(10, 8)
    truth = top_entries(
        q.double(), weights.double(), keys.double(), PLACES, ROWS, SEEN, count=count, backend="reference"
    )
    got = top_entries(q, weights, keys, PLACES, ROWS, SEEN, count=count)
    assert got.shape == truth.shape == (5, count)
    assert torch.equal(got.sort(dim=1).values, truth.sort(dim=1).values)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_entries_that_are_not_there_yet_are_not_chosen(backend: str, noise: Noise) -> None:
    q, keys = noise(5, 3, 8), noise(10, 8)
    # The later the entry the larger its key, and every product counts: unmasked it would come first.
    q, keys = q.abs(), keys.abs() * torch.logspace(0, 9, 10)[:, None]
    chosen = top_entries(q, torch.ones(5, 3), keys, PLACES, ROWS, SEEN, count=4, backend=backend)
    assert [sorted(row) for row in chosen.tolist()] == [
        [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [-1, -1, -1, -1], [-1, 0, 1, 2],
    ]  # fmt: skip


def test_keys_of_others_may_hold_anything(noise: Noise) -> None:
    q, weights, keys = noise(5, 3, 8), noise(5, 3), noise(10, 8)
    expected = top_entries(q, weights, keys, PLACES, ROWS, SEEN, count=2)
    # Slot 0 pads the table of the first sequence.
    keys[0] = torch.nan
    assert torch.equal(top_entries(q, weights, keys, PLACES, ROWS, SEEN, count=2), expected)
