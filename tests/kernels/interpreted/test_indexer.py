"""The indexer's kernel against the float64 formula: entries of any number, sequences of any length, poison."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.indexer import top_entries

Noise = Callable[..., Tensor]
ROWS = torch.tensor([1, 1, 1, 0, 0], dtype=torch.int32)
SEEN = torch.tensor([68, 69, 70, 0, 3])


def places_of() -> Tensor:
    """Two sequences, of 3 and of 70 entries, in a pool of 80; the first one's table is padded."""
    order = torch.randperm(79, generator=torch.Generator().manual_seed(1)) + 1
    return torch.stack((torch.nn.functional.pad(order[:3], (0, 67)), order[9:]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "channels", "count"), [(3, 8, 5), (20, 40, 64), (1, 130, 70), (2, 16, 90)])
def test_chooses_what_the_formula_chooses(
    heads: int, channels: int, count: int, dtype: torch.dtype, noise: Noise
) -> None:
    q, weights, keys = noise(5, heads, channels, dtype=dtype), noise(5, heads), noise(80, channels, dtype=dtype)
    # The slot of the padding, and what is in no table.
    keys[0] = torch.nan
    given = places_of(), ROWS, SEEN
    truth = top_entries(q.double(), weights.double(), keys.double(), *given, count=count, backend="reference")
    got = top_entries(q, weights, keys, *given, count=count, backend="triton")
    assert got.shape == truth.shape == (5, count)
    products = torch.einsum("thd,ted->the", q.double(), keys.double()[given[0][ROWS.long()]]).relu()
    worth = (weights.double()[..., None] * products).sum(dim=1)  # [T, E]
    # Entries without a positive product score 0 alike.
    best, wanted = (
        worth.gather(1, numbers.clamp(min=0)).masked_fill(numbers < 0, -1e9).sort(dim=1).values
        for numbers in (got, truth)
    )
    torch.testing.assert_close(best, wanted, rtol=1e-5, atol=1e-5)
    assert all(len(set(row) - {-1}) == sum(n >= 0 for n in row) for row in got.tolist())


def test_nothing_to_choose_from(noise: Noise) -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    rows, seen = torch.tensor([0, 1]), torch.tensor([0, 0])
    chosen = top_entries(noise(2, 3, 8), noise(2, 3), noise(4, 8), none, rows, seen, count=2, backend="triton")
    assert chosen.tolist() == [[-1, -1]] * 2
    empty = top_entries(noise(0, 3, 8), noise(0, 3), noise(4, 8), none, rows[:0], seen[:0], count=2, backend="triton")
    assert empty.shape == (0, 2)


def test_what_it_cannot_take_is_named(noise: Noise) -> None:
    none = torch.empty(1, 0, dtype=torch.int64)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(BackendUnavailableError, match="up to 8192 channels in all heads, not 9000"):
        top_entries(noise(1, 30, 300), noise(1, 30), noise(4, 300), none, one, one, count=2, backend="triton")
    half = noise(1, 3, 8, dtype=torch.bfloat16)
    with pytest.raises(BackendUnavailableError, match=r"one type, not torch\.bfloat16 and torch\.float32"):
        top_entries(half, noise(1, 3), noise(4, 8), none, one, one, count=2, backend="triton")
