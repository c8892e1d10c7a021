"""Plans and meshes: places, groups, one rank, and ranks that disagree."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from videoserve_kernels.comm import collectives
from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.sequence import SequenceMismatchError
from videoserve_kernels.comm.usp import attention

Ranks = Callable[[int], Callable[..., list[Any]]]


def test_the_innermost_axis_has_neighbouring_ranks() -> None:
    plan = ParallelPlan(cfg=2, ring=2, ulysses=2)
    assert [plan.coordinates(rank) for rank in (0, 1, 2, 4, 7)] == [
        (0, 0, 0, 0),
        (0, 0, 1, 0),
        (0, 1, 0, 0),
        (1, 0, 0, 0),
        (1, 1, 1, 0),
    ]
    assert plan.members("ulysses") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert plan.members("ring") == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert plan.members("ring", "ulysses") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert plan.members("cfg") == ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"ring": 0}, "ring is 0; 1 or more is allowed"),
        ({"head_groups": -1}, "head_groups is -1; 1 or more"),
        ({"cfg": 3}, "cfg is 3; guidance has two branches"),
        ({"codec": "int4"}, "no wire codec called 'int4'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ParallelPlan(**wrong)


def test_a_plan_needs_its_ranks() -> None:
    with pytest.raises(ValueError, match="The plan needs 4 ranks, but 1 are there"):
        Mesh(ParallelPlan(ulysses=4))


def test_one_rank_needs_no_world_and_moves_nothing() -> None:
    with Mesh(ParallelPlan()) as mesh:
        x = torch.randn(2, 3)
        assert torch.equal(collectives.all_reduce(x, mesh.tensor).wait(), x)
        assert torch.equal(collectives.all_gather(x, [6], mesh.sequence).wait()[0], x.view(-1))
        assert torch.equal(collectives.shift(x, [6], mesh.ring).wait(), x.view(-1))
        assert torch.equal(collectives.all_to_all([x], [[6]], mesh.ulysses).wait()[0], x.view(-1))
        assert collectives.broadcast(x, mesh.world).wait() is x
        assert mesh.shard(7) == slice(0, 7)
        q = torch.randn(1, 7, 2, 8)
        assert attention(q, q, q, mesh, length=7).shape == q.shape
        mesh.end_step()
        assert (mesh.counters.sent().bytes, mesh.counters.sent().messages) == (0, 0)


def places(world: Any) -> dict[str, tuple[str, tuple[int, ...], int]]:
    mesh = world.mesh(cfg=2, ring=2, ulysses=2)
    groups = (mesh.ulysses, mesh.ring, mesh.cfg, mesh.tensor, mesh.sequence, mesh.world)
    names = ("ulysses", "ring", "cfg", "tensor", "sequence", "world")
    return {name: (group.name, group.ranks, group.index) for name, group in zip(names, groups, strict=True)}


def test_every_rank_knows_its_groups(ranks_of: Ranks) -> None:
    for rank, groups in enumerate(ranks_of(8)(places)):
        assert {name: index for name, (_, _, index) in groups.items()} == {
            "ulysses": rank % 2,
            "ring": rank // 2 % 2,
            "cfg": rank // 4,
            "tensor": 0,
            "sequence": rank % 4,
            "world": rank,
        }
        assert all(ranks[index] == rank for _, ranks, index in groups.values())


def disagree(world: Any, how: str) -> str:
    mesh = world.mesh(ulysses=world.size, time_limit_s=20.0)
    x = torch.ones(4)
    for _ in range(3):
        collectives.all_gather(x, [4] * world.size, mesh.ulysses).wait()
    odd = world.rank == 1
    if how == "dtype":
        # As many bytes, so that no message is missing: only the comparison can tell.
        x = torch.ones(4, dtype=torch.int32) if odd else x
        collectives.all_gather(x, [4] * world.size, mesh.ulysses).wait()
    elif how == "op" and odd:
        collectives.reduce_scatter(torch.ones(4 * world.size), [4] * world.size, mesh.ulysses).wait()
    elif how == "op":
        collectives.all_gather(x, [4] * world.size, mesh.ulysses).wait()
    collectives.all_gather(torch.ones(2), [2] * world.size, mesh.ulysses)
    with pytest.raises(SequenceMismatchError) as caught:
        mesh.end_step()
    return str(caught.value)


@pytest.mark.parametrize("how", ["dtype", "op"])
def test_ranks_that_issue_different_collectives_find_out_at_the_end_of_the_step(fresh_ranks: Ranks, how: str) -> None:
    messages = fresh_ranks(3)(disagree, how)
    for rank, message in enumerate(messages):
        assert message.startswith("Step 0: the ranks of the group ulysses issued different collectives")
        assert f"they part at number 3, where rank {rank} issued" in message
    other = "all_gather of 4+4+4+4+4+4+4+4+4 int32" if how == "dtype" else "reduce_scatter of 4+4+4"
    assert f"rank 1 issued {other}" in messages[1]
    assert "rank 0 issued all_gather of 4+4+4+4+4+4+4+4+4 float32" in messages[0]


def skip_one(world: Any) -> tuple[str, float]:
    mesh = world.mesh(ulysses=world.size, time_limit_s=2.0)
    x = torch.ones(4)
    collectives.all_gather(x, [4] * world.size, mesh.ulysses).wait()
    began = time.monotonic()

    def rest_of_the_step() -> None:
        if world.rank != 1:
            collectives.all_gather(x, [4] * world.size, mesh.ulysses).wait()
        mesh.end_step()

    with pytest.raises((CommunicationError, SequenceMismatchError)) as caught:
        rest_of_the_step()
    return str(caught.value), time.monotonic() - began


def test_a_skipped_collective_raises_on_every_rank_within_the_time_limit(fresh_ranks: Ranks) -> None:
    for message, seconds in fresh_ranks(3)(skip_one):
        assert "number" in message
        # Not that of the test.
        assert seconds < 60.0


def sizes_differ(world: Any) -> str:
    mesh = world.mesh(ulysses=world.size, time_limit_s=2.0)
    counts = [3] * world.size if world.rank == 1 else [4] * world.size

    def step() -> None:
        collectives.all_gather(torch.ones(counts[0]), counts, mesh.ulysses).wait()
        mesh.end_step()

    with pytest.raises((CommunicationError, SequenceMismatchError)) as caught:
        step()
    return str(caught.value)


def test_messages_of_different_sizes_raise_on_every_rank(fresh_ranks: Ranks) -> None:
    for message in fresh_ranks(3)(sizes_differ):
        assert "number" in message


def steps(world: Any) -> int:
    mesh = world.mesh(cfg=2, ulysses=2)
    for step in range(5):
        for group in (mesh.ulysses, mesh.cfg):
            collectives.all_reduce(torch.ones(3 + step), group).wait()
        mesh.end_step()
    assert mesh.counters.sent("compare").messages == 5 * 3
    return int(mesh.collectives.step)


def test_ranks_that_agree_go_on(ranks_of: Ranks) -> None:
    assert ranks_of(4)(steps) == [5] * 4


def one_group_disagrees(world: Any) -> str:
    mesh = world.mesh(cfg=2, ulysses=2)
    # Ranks 2 and 3 are a Ulysses group of their own.
    count = 5 if world.rank == 3 else 4
    if world.rank >= 2:
        collectives.broadcast(torch.ones(1, dtype=torch.uint8), mesh.ulysses).wait()
        mesh.collectives.record("all_gather", "ulysses", [count], torch.float32)
    with pytest.raises(SequenceMismatchError) as caught:
        mesh.end_step()
    return str(caught.value)


def test_a_disagreement_elsewhere_stops_everybody(fresh_ranks: Ranks) -> None:
    messages = fresh_ranks(4)(one_group_disagrees)
    assert "is known to them only" in messages[0]
    assert "rank 3 issued all_gather of 5 float32" in messages[3]


def meshes_come_and_go(world: Any) -> int:
    total = 0
    for plan in (ParallelPlan(ulysses=4), ParallelPlan(ring=2, ulysses=2), ParallelPlan(cfg=2, tensor=2)):
        with Mesh(plan) as mesh:
            total += int(collectives.all_reduce(torch.ones(3), mesh.world).wait().sum())
            mesh.end_step()
    return total


def test_meshes_may_follow_each_other_in_one_world(ranks_of: Ranks) -> None:
    assert ranks_of(4)(meshes_come_and_go) == [36] * 4
