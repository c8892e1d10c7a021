"""The merge of a ring: any order of the blocks, scores far apart, blocks without keys."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from videoserve_kernels import reference
from videoserve_kernels.comm.collectives import cut
from videoserve_kernels.comm.ring import Parts, attend_with_lse


def blocks(dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 17, 3, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    # Each block's scores at another height.
    k = k * scale * torch.linspace(0.2, 3.0, 17, dtype=torch.float64)[:, None, None]
    return q.to(dtype), k.to(dtype), v.to(dtype)


def merged(q: Tensor, k: Tensor, v: Tensor, order: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    parts = Parts(q, attend_with_lse)
    keys, values = cut(k, sizes, 1), cut(v, sizes, 1)
    for block in order:
        parts.add(keys[block], values[block])
    return parts.out()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_order_of_the_blocks_does_not_matter(dtype: torch.dtype, tolerance: float, scale: float) -> None:
    q, k, v = blocks(dtype, scale)
    truth = reference.attend(q.double(), k.double(), v.double())
    assert isinstance(truth, Tensor)
    results = [merged(q, k, v, order, (6, 0, 1, 10)) for order in permutations(range(4))]
    for got in results:
        assert ((got - results[0]).norm() / results[0].norm()).item() <= tolerance
        assert ((got.double() - truth).norm() / truth.norm()).item() <= 10 * tolerance


def test_a_long_ring_of_bfloat16_loses_nothing_over_one_attention() -> None:
    q, k, v = blocks(torch.bfloat16)
    truth = reference.attend(q.double(), k.double(), v.double())
    assert isinstance(truth, Tensor)
    at_once = ((attend_with_lse(q, k, v)[0].double() - truth).norm() / truth.norm()).item()
    in_turn = ((merged(q, k, v, tuple(range(17)), (1,) * 17).double() - truth).norm() / truth.norm()).item()
    assert in_turn <= 1.5 * at_once


def test_a_ring_without_keys_is_refused() -> None:
    q, k, v = blocks(torch.float32)
    with pytest.raises(ValueError, match="every rank of the ring holds 0 tokens"):
        merged(q, k[:, :0], v[:, :0], (0,), (0,))
