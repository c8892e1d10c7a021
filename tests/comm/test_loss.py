"""A rank that dies or stands still: its peers raise, at once or at the time limit, and never hang."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.comm.usp import attention

Ranks = Callable[[int], Any]
SCHEMES = [{"ulysses": 3}, {"ulysses": 3, "head_groups": 2, "staged": False}, {"ring": 3}]


def work_until_it_breaks(
    world: Any, scheme: dict[str, Any], signal_after: int, number: int, time_limit_s: float
) -> tuple[str, float]:
    """What the collective said, and how many seconds the step took in which it did."""
    mesh = world.mesh(**scheme, time_limit_s=time_limit_s)
    q = torch.randn(1, 4, 6, 8)
    for step in range(1000):
        began = time.monotonic()
        if world.rank == 1 and step == signal_after:
            os.kill(os.getpid(), number)
        try:
            attention(q, q, q, mesh, length=12)
            mesh.end_step()
        except CommunicationError as error:
            return str(error), time.monotonic() - began
    return "nothing happened", 0.0


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_killed_rank_raises_on_its_peers_at_once(fresh_ranks: Ranks, scheme: dict[str, Any]) -> None:
    ranks = fresh_ranks(3)
    ranks.start(work_until_it_breaks, scheme, 5, signal.SIGKILL, 90.0)
    answers = ranks.answers([0, 2])
    for message, seconds in answers.values():
        assert "broke off: a peer died" in message
        # Without waiting for the time limit, however busy the machine.
        assert seconds < 60.0


def test_a_stopped_rank_raises_on_its_peers_at_the_time_limit(fresh_ranks: Ranks) -> None:
    ranks = fresh_ranks(3)
    ranks.start(work_until_it_breaks, SCHEMES[0], 5, signal.SIGSTOP, 2.0)
    try:
        answers = ranks.answers([0, 2])
    finally:
        ranks.signal(1, signal.SIGCONT)
    seconds = [seconds for _, seconds in answers.values()]
    # The first that notices takes its connections down and the others with it.
    assert max(seconds) >= 1.9


def everything_fails_afterwards(world: Any) -> list[str]:
    mesh = world.mesh(ulysses=2, time_limit_s=2.0)
    q = torch.randn(1, 4, 6, 8)
    attention(q, q, q, mesh, length=8)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    messages = []
    for _ in range(3):
        with pytest.raises(CommunicationError) as caught:
            attention(q, q, q, mesh, length=8)
        messages.append(str(caught.value))
    return messages


def test_a_broken_group_stays_broken(fresh_ranks: Ranks) -> None:
    ranks = fresh_ranks(2)
    ranks.start(everything_fails_afterwards)
    messages = ranks.answers([0])[0]
    assert len(messages) == 3
