"""Copies between cards, with cards that are functions; and the real ones where there are any."""

import pytest
import torch
from torch import Tensor

from videoserve_kernels.comm.peers import addresses, peers, try_peers


def test_a_copy_that_arrives_changed_is_told() -> None:
    def copy(x: Tensor, source: int, target: int) -> Tensor:
        broken = x.clone()
        # One byte, late in the block.
        broken[-1] += int((source, target) == (2, 0))
        return broken

    found = {(pair.source, pair.target): pair for pair in try_peers(3, lambda one, other: one + other < 3, copy)}
    assert len(found) == 6
    assert [ends for ends, pair in found.items() if not pair.intact] == [(2, 0)]
    assert [ends for ends, pair in found.items() if not pair.access] == [(1, 2), (2, 1)]


def test_what_is_left_of_the_pair_before_is_no_copy() -> None:
    memory: dict[str, Tensor] = {}

    def stuck(x: Tensor, source: int, target: int) -> Tensor:
        return memory.setdefault("first", x)

    assert [pair.intact for pair in try_peers(2, lambda one, other: True, stuck)] == [True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are cards")
def test_without_cards_there_are_no_pairs() -> None:
    assert peers() == []
    assert addresses() == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two cards")
def test_real_cards_keep_what_is_copied() -> None:
    assert all(pair.intact for pair in peers())
    assert len(set(addresses())) == torch.cuda.device_count()
