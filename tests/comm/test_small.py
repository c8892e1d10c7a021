"""Sums by size, and work in turns: the same as the plain collectives, with other messages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ranks import Ranks, World
from videoserve_kernels.comm.collectives import all_reduce
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.small import all_reduce_by_size
from videoserve_kernels.comm.turns import sum_in_turns

RanksOf = Callable[[int], Ranks]
COUNTS = (3, 0, 5, 1)


def sums(world: World, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Traffic]:
    mesh = world.mesh(tensor=world.size, staged=False)
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(world.rank)).to(dtype)
    size = x.numel() * x.element_size()
    plain = all_reduce(x, mesh.tensor).wait()
    longer = all_reduce_by_size(x, mesh.tensor, at_once_bytes=size - 1).wait()
    mesh.counters.clear()
    short = all_reduce_by_size(x, mesh.tensor, at_once_bytes=size).wait()
    sent = mesh.counters.sent()
    mesh.end_step()
    return plain, longer, short, sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3])
def test_a_sum_at_once_has_the_bits_of_one_in_two_halves(size: int, dtype: torch.dtype, ranks_of: RanksOf) -> None:
    found = ranks_of(size)(sums, dtype)
    for plain, longer, short, sent in found:
        assert torch.equal(plain, found[0][0])
        assert torch.equal(longer, plain)
        assert torch.equal(short, plain)
        assert sent == Traffic(bytes=(size - 1) * 21 * dtype.itemsize, messages=size - 1)


def in_turns(world: World) -> tuple[Tensor, Traffic]:
    mesh = world.mesh(tensor=world.size, staged=False)
    mine = torch.arange(COUNTS[world.rank], dtype=torch.float32) + 10 * world.rank

    def work(x: Tensor, owner: int) -> Tensor:
        assert len(x) == COUNTS[owner]
        return torch.stack((x * (world.rank + 1), x + world.rank))

    counts = COUNTS[: world.size]
    made = sum_in_turns(mine, counts, work, mesh.tensor, results=[2 * count for count in counts])
    sent = mesh.counters.sent()
    mesh.end_step()
    return made, sent


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_gets_the_sum_of_what_all_have_made_of_its_own(size: int, ranks_of: RanksOf) -> None:
    everybody = sum(range(1, size + 1))
    counts = COUNTS[:size]
    for rank, (made, sent) in enumerate(ranks_of(size)(in_turns)):
        x = torch.arange(COUNTS[rank], dtype=torch.float32) + 10 * rank
        assert torch.equal(made, torch.cat((x * everybody, x * size + everybody - size)))
        others = [count for peer, count in enumerate(counts) if peer != rank and count]
        assert sent == Traffic(
            bytes=4 * ((size - 1) * counts[rank] + 2 * sum(others)),
            messages=(size - 1) * (counts[rank] > 0) + len(others),
        )
