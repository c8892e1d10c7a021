"""attend() against the float64 formula."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.attention import attend

Fixture = Callable[..., Tensor]
ON_A_CPU = ["sdpa", "reference"]
SHAPES = [(1, 1, 1, 1, 2), (2, 7, 5, 3, 12), (3, 33, 65, 4, 32), (2, 0, 3, 2, 8)]


@pytest.mark.parametrize("backend", ON_A_CPU)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_formula(
    backend: str, shape: tuple[int, ...], dtype: torch.dtype, noise: Fixture, close: Callable[..., None]
) -> None:
    batch, queries, keys, heads, channels = shape
    q = noise(batch, queries, heads, channels, dtype=dtype)
    k, v = (noise(batch, keys, heads, channels, dtype=dtype) for _ in range(2))
    got = attend(q, k, v, backend=backend)
    assert got.dtype == dtype
    close(got, reference.attend(q.double(), k.double(), v.double()))


@pytest.mark.parametrize("backend", ON_A_CPU)
def test_a_key_with_the_bias_log_n_stands_for_n_equal_keys(
    backend: str, noise: Fixture, close: Callable[..., None]
) -> None:
    q, k, v = noise(2, 9, 3, 8), noise(2, 5, 3, 8), noise(2, 5, 3, 8)
    counts = torch.tensor([[1, 1, 1, 1, 59], [1, 1, 17, 0, 0]])
    written_out = [
        reference.attend(
            q[row : row + 1].double(),
            k[row].double().repeat_interleave(counts[row], dim=0)[None],
            v[row].double().repeat_interleave(counts[row], dim=0)[None],
        )
        for row in range(2)
    ]
    # A key that is taken out must not matter whatever it holds.
    v[1, 3:] = 1e30
    close(attend(q, k, v, key_bias=counts.float().log(), backend=backend), torch.cat(written_out))


def test_strided_inputs_need_no_copy_by_the_caller(noise: Fixture, close: Callable[..., None]) -> None:
    q, k, v = noise(2, 11, 3 * 3 * 8).chunk(3, dim=-1)
    q, k, v = (torch.unflatten(t, -1, (3, 8)) for t in (q, k, v))
    close(attend(q, k, v), reference.attend(q.double(), k.double(), v.double()))


def test_what_is_not_finite_comes_through(noise: Fixture) -> None:
    q, k, v = noise(1, 4, 2, 8), noise(1, 4, 2, 8), noise(1, 4, 2, 8)
    v[0, 2] = torch.nan
    assert attend(q, k, v).isnan().all()
