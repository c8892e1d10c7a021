"""The policy first_blocks inside Wan's forward: tiny models of all layouts, on one rank and on several."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from tests.blocks_denoiser import (
    ALONE,
    FEW,
    LAYERS,
    ODD,
    PLANS,
    SCHEDULE,
    SOME,
    STEPS,
    Denoising,
    Video,
    begin,
    distance,
    letters,
)
from tests.ranks import World
from videoserve.video.families.middle import MiddleBlocks, branches_here, reduction
from videoserve_cache.steps.agreement import DisagreementError
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_kernels.comm.plan import ParallelPlan

RanksOf = Callable[[int], Callable[..., list[Any]]]


@pytest.mark.parametrize(
    ("layout", "dtype"), [*((layout, torch.float32) for layout in tiny.LAYOUTS), ("wan22-ti2v", torch.bfloat16)]
)
def test_all_steps_computed_is_exact_and_so_is_a_skip_of_no_block(layout: str, dtype: torch.dtype) -> None:
    video = Video(layout, dtype=dtype)
    truth = Denoising(video, None).finish()
    for policy in (FirstBlocks(threshold=1e-30), FirstBlocks(threshold=1e-30, first=2, last=1)):
        run = begin(video, policy)
        assert torch.equal(run.finish(), truth)
        assert letters(run) == "R" * STEPS
        assert run.cache is not None
        assert run.cache.nbytes > 0
    for policy in (FirstBlocks(threshold=9.0, first=LAYERS), FirstBlocks(threshold=9.0, first=1, last=LAYERS)):
        run = begin(video, policy)
        assert torch.equal(run.finish(), truth)
        assert letters(run) == "RR....R....R"


def test_other_weights_start_anew() -> None:
    video = Video("wan22-ti2v")
    run = begin(video, FirstBlocks(threshold=9.0, guards=Guards(warmup=1)))
    while run.step < 3:
        run.advance()
    assert letters(run) == "R.."
    run.epoch = "another adapter"
    run.advance()
    assert letters(run) == "R..R"
    fresh = begin(video, FirstBlocks(threshold=9.0, guards=Guards(warmup=1)))
    fresh.epoch, fresh.step, fresh.latents = run.epoch, 3, run.before
    fresh.advance()
    # Nothing carried over: what follows is what it is without the steps before.
    for either in (run, fresh):
        either.advance()
    assert torch.equal(run.latents, fresh.latents)


def test_a_reduction_over_other_ranks_than_the_job_s_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"a job of the ranks \(0, 1\) on a mesh of \(0,\)"):
        reduction(ALONE)(torch.zeros(2), (0, 1))


class Counting(MiddleBlocks):
    """Notes which blocks are left out."""

    left_out: list[int]

    def leaves_out(self, layer: int) -> bool:
        out = super().leaves_out(layer)
        if out:
            self.left_out.append(layer)
        return out


@pytest.mark.parametrize(("first", "last", "skipped"), [(1, 0, [1, 2, 3]), (2, 0, [2, 3]), (1, 2, [1])])
def test_a_skip_leaves_out_the_middle_and_repeats_it_where_nothing_changed(
    first: int, last: int, skipped: list[int]
) -> None:
    video = Video("wan22-ti2v")
    run = begin(video, FirstBlocks(threshold=9.0, first=first, last=last, guards=Guards(warmup=1)))
    computed = video.velocity(video.latents, 0, ALONE, run.middle())
    run.step = 1
    assert run.cache is not None
    middle = Counting(run.cache, run.ctx(), branches_here(2, ALONE))
    middle.left_out = []
    # The same latents and timestep: had a block written into what was kept, this would be another velocity.
    again = video.velocity(video.latents, 0, ALONE, middle)
    assert middle.left_out == skipped
    assert distance(again, computed) < 1e-14
    assert run.cache.receipt()["probe"][1] == "0"


@pytest.mark.parametrize("layout", tiny.LAYOUTS)
def test_it_stays_near_and_is_nearer_with_more_blocks_computed(layout: str) -> None:
    video = Video(layout)
    truth = Denoising(video, None).finish()
    errors = []
    for first, last in ((1, 0), (2, 0), (3, 0)):
        # With the cap deciding, all skip the same steps.
        run = begin(video, FirstBlocks(threshold=9.0, first=first, last=last, guards=Guards(max_skips=2)))
        errors.append(distance(run.finish(), truth))
        assert letters(run) == "RR..R..R..RR"
    assert errors[2] < errors[1] < errors[0] < 0.1
    runs = [letters_of(video, FirstBlocks(threshold=t)).count("R") for t in (0.01, 0.05, 0.1, 0.5)]
    assert runs == sorted(runs, reverse=True)
    assert runs[0] > runs[-1]


def letters_of(video: Video, policy: FirstBlocks) -> str:
    run = begin(video, policy)
    run.finish()
    return letters(run)


def on_a_mesh(world: Any, layout: str, grid: tuple[int, int, int], names: tuple[str, ...]) -> list[Any]:
    """Latents and letters of each plan, and how many messages a probed forward sends beside a plain one's."""
    video, found = Video(layout, grid), []
    for name in names:
        plan = ParallelPlan.parse(name)
        mesh = world.mesh(cfg=plan.cfg, ring=plan.ring, ulysses=plan.ulysses)
        run = begin(video, SOME, mesh)
        found.append((run.finish(), letters(run)))
    return found


@pytest.mark.parametrize(
    ("ranks", "layout", "grid"),
    [
        *((2, layout, ODD) for layout in tiny.LAYOUTS),
        (3, "wan21-i2v", ODD),
        (3, "wan22-a14b", FEW),
        (3, "wan22-ti2v", FEW),
        *(pytest.param(8, layout, FEW, marks=pytest.mark.slow) for layout in tiny.LAYOUTS),
    ],
)
def test_every_rank_of_any_plan_decides_as_one_rank_does(
    ranks_of: RanksOf, ranks: int, layout: str, grid: tuple[int, int, int]
) -> None:
    alone = begin(Video(layout, grid), SOME)
    truth = alone.finish()
    assert "." in letters(alone)
    assert "R" in letters(alone)[3:-1]
    for rank in ranks_of(ranks)(on_a_mesh, layout, grid, PLANS[ranks]):
        for latents, told in rank:
            assert told == letters(alone)
            assert distance(latents, truth) < 1e-10


def disagreeing(world: Any, at: int) -> str:
    """Rank 1 has another mind at one step."""

    class Stray(FirstBlocks):
        def decide(self, ctx, history, scalar):  # type: ignore[no-untyped-def]
            wanted = super().decide(ctx, history, scalar)
            return Decision.RUN if ctx.step == at and world.rank == 1 else wanted

    mesh = world.mesh(cfg=2)
    run = begin(Video("wan22-ti2v"), Stray(threshold=9.0), mesh)
    with pytest.raises(DisagreementError) as caught:
        run.finish()
    # The groups are whole: all ranks have issued the same.
    mesh.end_step()
    return str(caught.value)


def test_a_rank_of_another_mind_fails_all_and_hangs_none(ranks_of: RanksOf) -> None:
    first, second = ranks_of(2)(disagreeing, 3)
    assert first == "The ranks 0, 1 do not agree about step 3 of 12; this rank would skip it."
    assert second == "The ranks 0, 1 do not agree about step 3 of 12; this rank would compute it."


def resumed(world: Any, layout: str, plans: tuple[str, str], order: int, stops: list[int]) -> list[Any]:
    """A video as it ends, and as it ends after a stop: another process has only what rank 0's state holds."""
    video, found = Video(layout), []
    meshes = [
        world.mesh(**{key: getattr(plan, key) for key in ("cfg", "ring", "ulysses")})
        for plan in map(ParallelPlan.parse, plans)
    ]
    policy = FirstBlocks(threshold=SOME.threshold, forecast=Forecast(order=order), guards=SOME.guards)
    whole = begin(video, policy, meshes[0])
    found.append((whole.finish(), whole.cache and whole.cache.receipt()["steps"]))
    for stop in stops:
        first = begin(video, policy, meshes[0])
        while first.step < stop:
            first.advance()
        assert first.cache is not None
        tensors, state = first.cache.state()
        first.cache.close()
        second = begin(video, policy, meshes[1])
        second.latents, second.step = first.latents, stop
        put_back(world, second, tensors, state)
        found.append((second.finish(), letters(second)))
    return found


def put_back(world: Any, run: Denoising, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """As the engine does it: rank 0 has the latents of what was lost, and all compute it again."""
    assert run.cache is not None
    if world.rank:
        run.cache.restore({}, state | {"store": []}, torch.device("cpu"))
    else:
        run.cache.restore(tensors, state, torch.device("cpu"))
    noted = [(entry[5], tensors[entry[0]]) for entry in state["store"] if entry[3] == "latents"]
    if not world.rank:
        lost = [(ctx.step, latents.tolist()) for ctx, latents in run.cache.lost(run.ctx())]
        assert lost == [(step, latents.tolist()) for step, latents in noted]
    for step, latents in noted:
        ctx = SCHEDULE.at(step, request="job", group=run.mesh.world.ranks)
        middle = MiddleBlocks(run.cache, ctx, branches_here(2, run.mesh), again=True)
        run.video.velocity(latents, step, run.mesh, middle)
    assert run.cache.lost(run.ctx()) == []


@pytest.mark.parametrize("order", [0, 2])
def test_a_resumed_video_ends_bit_for_bit_like_an_undisturbed_one(order: int) -> None:
    whole, *parts = resumed(World(0, 1), "wan22-ti2v", ("one", "one"), order, list(range(1, STEPS)))
    assert "." in whole[1]
    for part in parts:
        assert part[1] == whole[1]
        assert torch.equal(part[0], whole[0])


@pytest.mark.parametrize("plans", [("u2", "u2"), ("cfg2", "cfg2"), ("cfg2", "u2"), ("r2", "cfg2")])
def test_so_it_does_on_several_ranks_and_on_others_than_before(ranks_of: RanksOf, plans: tuple[str, str]) -> None:
    for whole, *parts in ranks_of(2)(resumed, "wan22-a14b", plans, 1, [3, 5, 9]):
        assert "." in whole[1]
        for latents, told in parts:
            assert told == whole[1]
            # Other ranks round otherwise.
            assert torch.equal(latents, whole[0]) if plans[0] == plans[1] else distance(latents, whole[0]) < 1e-10
