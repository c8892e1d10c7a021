"""The end of a step: shards of the sequence and branches of guidance come together, one message a rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from videoserve_kernels.comm.gather import branch_rows, gather_branches, gather_sequence

Ranks = Callable[[int], Callable[..., list[Any]]]


def model(rows: Tensor) -> Tensor:
    """Something that acts on each token and row by itself."""
    return rows.sin() * 3


def guided(world: Any, plan: dict[str, int], length: int) -> Tensor:
    mesh = world.mesh(**plan)
    # Cond and uncond of each of three jobs.
    rows = torch.arange(6 * length * 2, dtype=torch.float32).view(6, length, 2)
    mine = rows[branch_rows(6, mesh)][:, mesh.shard(length)]
    both = gather_branches(model(mine), mesh)
    sent = mesh.counters.sent()
    assert sent.messages == (plan.get("cfg", 1) - 1 if mine.numel() else 0)
    assert sent.bytes == sent.messages * mine.numel() * 4
    cond, uncond = both[0::2], both[1::2]
    guided = gather_sequence(uncond + 5 * (cond - uncond), mesh, length=length)
    peers = mesh.sequence.size - 1 if mine.numel() else 0
    assert mesh.counters.sent().messages == sent.messages + peers
    return guided


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize(
    "plan", [{}, {"cfg": 2}, {"cfg": 2, "ulysses": 2}, {"ring": 3}, {"cfg": 2, "ring": 2, "ulysses": 2}], ids=str
)
def test_guidance_is_the_same_wherever_the_branches_are(ranks_of: Ranks, plan: dict[str, int], length: int) -> None:
    rows = model(torch.arange(6 * length * 2, dtype=torch.float32).view(6, length, 2))
    truth = rows[1::2] + 5 * (rows[0::2] - rows[1::2])
    size = 1
    for extent in plan.values():
        size *= extent
    results = ranks_of(size)(guided, plan, length)
    # The same numbers on every rank; a sine may round differently with the place in a vector register.
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], truth, atol=1e-5, rtol=1e-5)


def refuse(world: Any) -> str:
    with pytest.raises(ValueError, match="rows") as caught:
        branch_rows(3, world.mesh(cfg=2))
    return str(caught.value)


def test_rows_without_a_partner_are_refused(ranks_of: Ranks) -> None:
    assert ranks_of(2)(refuse) == ["3 rows cannot be shared by 2 branches: a multiple is allowed."] * 2


def poison(world: Any) -> tuple[bool, int]:
    return bool(torch.empty(5).isnan().all()), int(torch.empty(3, dtype=torch.uint8).min())


def test_the_ranks_of_these_tests_start_from_poisoned_memory(ranks_of: Ranks) -> None:
    assert ranks_of(2)(poison) == [(True, 255)] * 2
