"""What overlaps: the next piece or block is under way before the one at hand is attended."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_kernels.attention import attend
from videoserve_kernels.comm.heads import Heads
from videoserve_kernels.comm.ring import attend_with_lse, ring_attention
from videoserve_kernels.comm.ulysses import Trade, ulysses_attention
from videoserve_kernels.comm.wire import codec_named

Ranks = Callable[[int], Callable[..., list[Any]]]


def posted_at_each_piece(world: Any, pieces: int, staged: bool) -> list[int]:
    """How many messages this rank had posted whenever it began to attend a piece, and in the end."""
    mesh = world.mesh(ulysses=world.size, staged=staged)
    q = torch.randn(1, 5, 4 * world.size, 8)
    trade = Trade(
        group=mesh.ulysses,
        codec=codec_named("none"),
        heads=Heads.of(q.shape[2], q.shape[2], world.size, pieces),
        lengths=(5,) * world.size,
        batch=1,
        channels=8,
        dtype=q.dtype,
    )
    posted = []

    def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        posted.append(mesh.counters.sent().messages)
        return attend(q, k, v)

    ulysses_attention(q, q, q, trade, pieces, inner)
    return [*posted, mesh.counters.sent().messages]


@pytest.mark.parametrize("staged", [False, True])
def test_head_groups_post_the_next_exchange_before_they_attend(ranks_of: Ranks, staged: bool) -> None:
    # Three peers. At piece g: g + 2 exchanges there, g back.
    for posted in ranks_of(4)(posted_at_each_piece, 4, staged):
        assert posted == [6, 12, 18, 21, 24]
    for posted in ranks_of(4)(posted_at_each_piece, 1, staged):
        assert posted == [3, 6]


def posted_at_each_block(world: Any) -> list[int]:
    mesh = world.mesh(ring=world.size)
    q = torch.randn(1, 5, 2, 8)
    posted = []

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        posted.append(mesh.counters.sent().messages)
        return attend_with_lse(q, k, v)

    ring_attention(q, q, q, mesh.ring, (5,) * world.size, codec_named("none"), kernel=kernel)
    return [*posted, mesh.counters.sent().messages]


def test_a_ring_posts_the_next_shift_before_it_attends(ranks_of: Ranks) -> None:
    assert ranks_of(4)(posted_at_each_block) == [[1, 2, 3, 3, 3]] * 4
