"""Wan's forward on a mesh equals the forward on one rank, whatever the plan, and sends what the formulas say."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from tests.ranks import World
from videoserve.video.families.context import TextContext
from videoserve.video.families.shard import timestep_runs
from videoserve.video.families.wan import WanTransformer
from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.gather import branch_rows
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.split import split
from videoserve_kernels.comm.volume import Layer, messages, sent

RanksOf = Callable[[int], Callable[..., list[Any]]]
Grid = tuple[int, int, int]

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
TEXT_LENGTH = 64
# Latent frames, rows and columns. 24 tokens of 8 a frame; 45 of 15; 3, which not every rank of eight has one of.
GRIDS: tuple[Grid, ...] = ((3, 4, 8), (3, 6, 10), (3, 2, 2))
# By number of ranks; "g" where every rank has that many heads of four, or of six.
PLANS = {
    1: ("one",),
    2: ("u2", "u2-g2", "u2-atonce", "r2", "cfg2"),
    3: ("u3", "u3-g2", "r3"),
    4: ("u4", "r4", "u2-r2", "u2-r2-g2", "cfg2-u2", "cfg2-u2-g2", "cfg2-r2"),
    8: ("u8", "r8", "u2-r4-g2", "u4-r2", "cfg2-u4", "cfg2-r4", "cfg2-u2-r2-g2", "cfg2-u2-r2-g2-atonce"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A step's forward: `layers` of `layer`, whose batch is the jobs, `branches` of each, and the result of a token.

    `result_bytes` is what a token of the velocity takes, in one row.
    """

    layer: Layer
    layers: int
    branches: int
    result_bytes: int


def forward_sent(forward: Forward, plan: ParallelPlan, rank: int) -> Traffic:
    """What a rank sends in a whole forward: its self-attentions, its shard of the result and its branch of it.

    The branches that a rank computes share the first self-attention. Cross-attention sends nothing.
    """
    _, ring, ulysses, _ = plan.coordinates(rank)
    place = ring * plan.ulysses + ulysses
    layer, places = forward.layer, plan.ring * plan.ulysses
    rows = layer.batch * forward.branches // plan.cfg
    total = sent(layer, plan, place)
    later = sent(replace(layer, batch=rows), plan, place)
    for _ in range(forward.layers - 1):
        total += later
    mine = split(layer.length, places)[place]
    total += messages([mine] * (places - 1), rows * forward.result_bytes)
    return total + messages([layer.length] * (plan.cfg - 1), rows * forward.result_bytes)


class Case:
    """A tiny transformer of one layout with odd and even heads, and the inputs of two jobs."""

    def __init__(self, layout: str, grid: Grid, dtype: torch.dtype, heads: int) -> None:
        torch.manual_seed(5)
        changes: dict[str, Any] = {"num_attention_heads": heads}
        if layout == "wan21-i2v":
            changes["added_kv_proj_dim"] = 12 * heads
        theirs = tiny.transformer(layout, **changes).to(dtype)
        config = theirs.config
        self.ours = WanTransformer(theirs, clean_first_frame=layout == "wan22-ti2v")
        generator = torch.Generator().manual_seed(3)

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.grid = grid
        self.latents = noise(2, config.in_channels, *grid)
        self.timesteps = torch.tensor([811.0, 333.0])
        self.texts = [noise(count, config.text_dim) for count in (5, 1, TEXT_LENGTH, 17)]
        self.images = noise(2, 5, config.image_dim) if config.image_dim else None

    def run(self, mesh: Mesh, jobs: int, branches: int) -> Tensor:
        """The velocity of some jobs as every rank of the mesh gets it."""
        contexts = []
        for job in range(jobs):
            texts = self.texts[2 * job : 2 * job + branches][branch_rows(branches, mesh)]
            images = None if self.images is None else self.images[job : job + 1]
            contexts.append(self.ours.prepare_text(texts, TEXT_LENGTH, branches=len(texts), image_embeds=images))
        return self.ours.forward(self.latents[:jobs], self.timesteps[:jobs], TextContext.stack(contexts), mesh)

    def forward(self, jobs: int, branches: int) -> Forward:
        """What the formulas need to know."""
        config = self.ours.config
        tokens = self.grid[0] * self.grid[1] * self.grid[2] // 4
        layer = Layer(
            batch=jobs,
            length=tokens,
            query_heads=config.num_attention_heads,
            key_heads=config.num_attention_heads,
            channels=config.attention_head_dim,
            itemsize=self.ours.dtype.itemsize,
        )
        result = prod(config.patch_size) * config.out_channels * self.ours.dtype.itemsize
        return Forward(layer=layer, layers=config.num_layers, branches=branches, result_bytes=result)


def allowed(name: str, heads: int, branches: int) -> bool:
    """Whether every rank has enough heads for the plan's head groups, and every branch its ranks."""
    plan = ParallelPlan.parse(name)
    return plan.head_groups <= -(-heads // plan.ulysses) and branches % plan.cfg == 0


def error(got: Tensor, truth: Tensor) -> float:
    """Relative L2."""
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def cases(layout: str, few: bool) -> Iterator[tuple[Case, int, int]]:
    """Cases of a layout with how many jobs and branches to run of each."""
    chosen = [
        (GRIDS[1], torch.float64, 5, 2, 2),
        (GRIDS[1], torch.float32, 5, 2, 2),
        (GRIDS[0], torch.float32, 4, 1, 2),
        (GRIDS[1], torch.float64, 4, 1, 1),
        (GRIDS[2], torch.float32, 4, 2, 1),
    ]
    for grid, dtype, heads, jobs, branches in chosen[:2] if few else chosen:
        yield Case(layout, grid, dtype, heads), jobs, branches


def every_plan(world: Any, names: tuple[str, ...], few: bool) -> int:
    """Compares each plan with one rank in each case; how many comparisons that were."""
    count = 0
    alone = Mesh(ParallelPlan())
    for case, jobs, branches in (case for layout in tiny.LAYOUTS for case in cases(layout, few)):
        truth = case.run(alone, jobs, branches)
        heads = case.ours.config.num_attention_heads
        for name in (name for name in names if allowed(name, heads, branches)):
            mesh = world.mesh(**fields(name))
            got = case.run(mesh, jobs, branches)
            where = (name, case.grid, heads, jobs, branches, case.ours.dtype)
            assert got.shape == truth.shape, where
            assert error(got, truth) <= TOLERANCE[case.ours.dtype], (error(got, truth), *where)
            assert mesh.counters.sent() == forward_sent(case.forward(jobs, branches), mesh.plan, world.rank), where
            mesh.end_step()
            count += 1
    return count


def fields(name: str) -> dict[str, Any]:
    plan = ParallelPlan.parse(name)
    return {field: getattr(plan, field) for field in ("cfg", "ring", "ulysses", "head_groups", "staged")}


@pytest.mark.parametrize("ranks", [2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_plan_equals_one_rank_and_sends_what_the_formulas_say(ranks_of: RanksOf, ranks: int) -> None:
    few = ranks == 8
    counts = ranks_of(ranks)(every_plan, PLANS[ranks], few)
    assert len(set(counts)) == 1
    assert counts[0] >= len(tiny.LAYOUTS) * len(PLANS[ranks]) * (2 if few else 3)


def test_one_rank_is_the_identity_and_sends_nothing() -> None:
    assert every_plan(World(0, 1), PLANS[1], False) == 15


def test_timesteps_go_by_the_place_in_the_whole_video() -> None:
    """For every shard: expanded to tokens, the runs are the timesteps of the tokens of the whole video."""
    tokens, clean = 45, 15
    whole = [int(token >= clean) for token in range(tokens)]
    for begin in range(tokens):
        for end in range(begin + 1, tokens + 1):
            runs = timestep_runs(slice(begin, end), clean)
            assert (end - begin) % len(runs) == 0
            length = (end - begin) // len(runs)
            assert [run for run in runs for _ in range(length)] == whole[begin:end]
    assert timestep_runs(slice(0, 45), 15) == [0, 1, 1]
    assert timestep_runs(slice(3, 40), 0) == [0]
    assert timestep_runs(slice(9, 9), 15) == [1]
