"""The low-rank addition on a CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels.backend import BackendUnavailableError
from videoserve_kernels.low_rank import add_low_rank

Fixture = Callable[..., Tensor]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (6, 13, 9, 4), (0, 8, 8, 4), (4, 8, 8, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_weight_with_the_product_added(
    backend: str, shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    rows, inputs, outputs, rank = shape
    x, y = noise(2, rows, inputs, dtype=dtype), noise(2, rows, outputs, dtype=dtype)
    a, b = noise(rank, inputs, dtype=dtype) / inputs**0.5, noise(outputs, rank, dtype=dtype) / 2
    truth = y.double() + x.double() @ (b.double() @ a.double()).t()
    assert add_low_rank(y, x, a, b, backend=backend) is y
    close(y, truth)


def test_the_kernel_says_why_it_cannot_run(noise: Fixture) -> None:
    x, y = noise(2, 8), noise(2, 8)
    with pytest.raises(BackendUnavailableError, match="a tensor is on cpu"):
        add_low_rank(y, x, noise(4, 8), noise(8, 4), backend="triton")


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_every_row_has_its_own_slot_or_none(backend: str, noise: Fixture, close: Callable[..., None]) -> None:
    x, y, a, b = noise(2, 4, 13), noise(2, 4, 9), noise(3, 4, 13), noise(3, 9, 4)
    slots = torch.tensor([[2, -1, 0, 2], [0, 0, -1, 2]], dtype=torch.int32)
    truth = y.double()
    for at in slots.nonzero().tolist() + (slots == 0).nonzero().tolist():
        slot = int(slots[*at])
        if slot >= 0:
            truth[*at] += b[slot].double() @ (a[slot].double() @ x[*at].double())
    before = y.clone()
    assert add_low_rank(y, x, a, b, slots=slots, backend=backend) is y
    close(y, truth)
    assert torch.equal(y[slots < 0], before[slots < 0])


def test_a_row_has_the_bits_of_its_slot_for_all(noise: Fixture) -> None:
    x, y, a, b = noise(37, 64), noise(37, 48), noise(3, 8, 64), noise(3, 48, 8)
    slots = torch.arange(37, dtype=torch.int32) % 4 - 1
    mixed = add_low_rank(y.clone(), x, a, b, slots=slots)
    for slot in range(3):
        alone = add_low_rank(y.clone(), x, a[slot], b[slot])
        assert torch.equal(mixed[slots == slot], alone[slots == slot])
