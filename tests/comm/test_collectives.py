"""The collectives on real ranks: values, exact bytes and messages, empty shares, every dtype."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_kernels.comm import collectives
from videoserve_kernels.comm.split import split

Ranks = Callable[[int], Callable[..., list[Any]]]
SIZES = [1, 2, 3, 4, 8]
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.float8_e4m3fn]


def value(source: int, target: int, count: int) -> Tensor:
    return (torch.arange(count) * 5 + 3 * source + target) % 16


def trade(world: Any, staged: bool, uneven: bool) -> Any:
    mesh = world.mesh(ulysses=world.size, staged=staged)
    counts = [[(i * 5 + j * 3) % 7 if uneven else 6 for j in range(world.size)] for i in range(world.size)]
    for dtype in DTYPES:
        parts = [value(world.rank, j, counts[world.rank][j]).to(dtype) for j in range(world.size)]
        for i, got in enumerate(collectives.all_to_all(parts, counts, mesh.ulysses).wait()):
            assert got.dtype == dtype
            assert torch.equal(got.double(), value(i, world.rank, counts[i][world.rank]).double())
    mesh.end_step()
    items = sum(dtype.itemsize for dtype in DTYPES)
    mine = [counts[world.rank][j] for j in range(world.size) if j != world.rank]
    sent = mesh.counters.sent("all_to_all")
    assert sent.bytes == sum(mine) * items
    assert sent.messages == sum(1 for count in mine if count) * len(DTYPES)
    return sent, mesh.counters.received("all_to_all")


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_brings_each_rank_its_parts(ranks_of: Ranks, size: int, staged: bool, uneven: bool) -> None:
    traffic = ranks_of(size)(trade, staged, uneven)
    assert sum(sent.bytes for sent, _ in traffic) == sum(received.bytes for _, received in traffic)
    assert sum(sent.messages for sent, _ in traffic) == sum(received.messages for _, received in traffic)
    if not uneven:
        assert {sent.messages for sent, _ in traffic} == {(size - 1) * len(DTYPES)}


def gather(world: Any) -> None:
    mesh = world.mesh(ulysses=world.size)
    # The first ranks have nothing: rank r holds r - 1 elements.
    counts = [max(rank - 1, 0) for rank in range(world.size)]
    mine = value(world.rank, 0, counts[world.rank]).float()
    got = collectives.all_gather(mine, counts, mesh.world).wait()
    for rank, piece in enumerate(got):
        assert torch.equal(piece, value(rank, 0, counts[rank]).float())
    sent = mesh.counters.sent("all_gather")
    peers = world.size - 1 if mine.numel() else 0
    assert (sent.bytes, sent.messages) == (4 * mine.numel() * peers, peers)


@pytest.mark.parametrize("size", SIZES)
def test_all_gather_takes_uneven_and_empty_shares(ranks_of: Ranks, size: int) -> None:
    ranks_of(size)(gather)


def reduce(world: Any) -> tuple[Tensor, Tensor, int]:
    mesh = world.mesh(tensor=world.size)
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(3, 7, generator=generator).bfloat16()
    counts = split(21, world.size)
    shared = collectives.reduce_scatter(x, counts, mesh.tensor).wait()
    sent = mesh.counters.sent("reduce_scatter").bytes
    assert sent == 2 * (21 - counts[world.rank])
    summed = collectives.all_reduce(x, mesh.tensor).wait()
    assert summed.shape == x.shape
    mesh.end_step()
    return shared, summed, mesh.counters.sent().messages


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_the_same_bits_everywhere_and_rounded_once(ranks_of: Ranks, size: int) -> None:
    results = ranks_of(size)(reduce)
    truth = torch.zeros(3, 7)
    for rank in range(size):
        truth += torch.randn(3, 7, generator=torch.Generator().manual_seed(rank)).bfloat16()
    assert torch.equal(torch.cat([shared for shared, _, _ in results]), truth.bfloat16().view(-1))
    for _, summed, _ in results:
        assert torch.equal(summed, truth.bfloat16())
    # reduce_scatter, and all_reduce as reduce_scatter with all_gather, and the comparison at the end of the step.
    assert {messages for _, _, messages in results} == {4 * (size - 1)}


def fewer_elements_than_ranks(world: Any) -> list[float]:
    mesh = world.mesh(tensor=world.size)
    total: list[float] = collectives.all_reduce(torch.tensor([1.5, float(world.rank)]), mesh.tensor).wait().tolist()
    return total


def test_all_reduce_of_two_elements_on_eight_ranks(ranks_of: Ranks) -> None:
    assert ranks_of(8)(fewer_elements_than_ranks) == [[12.0, 28.0]] * 8


def tell(world: Any, source: int) -> tuple[list[int], int]:
    mesh = world.mesh(ulysses=world.size)
    header = torch.arange(5) * (world.rank + 1)
    collectives.broadcast(header, mesh.world, source).wait()
    return header.tolist(), mesh.counters.sent("broadcast").messages


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_tells_everybody(ranks_of: Ranks, size: int) -> None:
    source = size - 1
    results = ranks_of(size)(tell, source)
    assert [header for header, _ in results] == [[i * size for i in range(5)]] * size
    assert [messages for _, messages in results] == [0] * source + [size - 1]


def go_round(world: Any) -> None:
    mesh = world.mesh(ring=world.size)
    counts = [rank % 3 * 4 for rank in range(world.size)]
    held = value(world.rank, 0, counts[world.rank]).double()
    handles = []
    for turn in range(world.size):
        origin = (world.rank - turn) % world.size
        assert torch.equal(held, value(origin, 0, counts[origin]).double())
        handles.append(collectives.shift(held, counts, mesh.ring, turn=turn))
        held = handles[-1].wait()
    # Asked again, a handle gives what it gave.
    assert handles[-1].wait() is held
    assert torch.equal(held, value(world.rank, 0, counts[world.rank]).double())
    mesh.end_step()


@pytest.mark.parametrize("size", SIZES)
def test_shift_brings_every_block_round_and_home(ranks_of: Ranks, size: int) -> None:
    ranks_of(size)(go_round)


def several_at_once(world: Any, staged: bool) -> None:
    mesh = world.mesh(ulysses=world.size, staged=staged)
    counts = [[4] * world.size for _ in range(world.size)]
    handles = []
    for number in range(6):
        parts = [value(world.rank, j, 4) + 100 * number for j in range(world.size)]
        handles.append(collectives.all_to_all(parts, counts, mesh.ulysses))
    for number in reversed(range(6)):
        for i, got in enumerate(handles[number].wait()):
            assert torch.equal(got, value(i, world.rank, 4) + 100 * number)


@pytest.mark.parametrize("staged", [False, True])
def test_handles_may_be_waited_for_in_any_order(ranks_of: Ranks, staged: bool) -> None:
    ranks_of(4)(several_at_once, staged)


def say_something_else(world: Any) -> list[str]:
    mesh = world.mesh(ulysses=world.size)
    wrong = [
        lambda: collectives.all_to_all([torch.ones(2)] * 2, [[1, 2], [1, 2]], mesh.ulysses),
        lambda: collectives.all_gather(torch.ones(3), [1, 2], mesh.ulysses),
        lambda: collectives.reduce_scatter(torch.ones(4), [1, 2], mesh.ulysses),
        lambda: collectives.shift(torch.ones(3), [1, 2], mesh.ulysses),
    ]
    messages = []
    for call in wrong:
        with pytest.raises(ValueError, match="elements where") as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_a_share_of_another_size_than_told_is_refused(ranks_of: Ranks) -> None:
    first, second = ranks_of(2)(say_something_else)
    assert first[1] == "Rank 0 of the group ulysses holds [3] elements where [1] were told."
    assert second[3] == "Rank 1 of the group ulysses holds [3] elements where [2] were told."
