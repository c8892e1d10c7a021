"""A denoising loop of a tiny Wan whose step cache decides inside the forward, on one rank or several."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests import tiny
from videoserve.video.families.context import TextContext
from videoserve.video.families.middle import MiddleBlocks, branches_here, reduction
from videoserve.video.families.wan import WanTransformer
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget
from videoserve_kernels.comm.gather import branch_rows
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

LAYERS, STEPS, TEXT_LENGTH = 4, 12, 64
# 45 tokens, which no number of ranks here divides, and 3, of which not every rank of eight has one.
ODD, FEW = (3, 6, 10), (3, 2, 2)
SOME = FirstBlocks(threshold=0.08, guards=Guards(max_skips=3))
ALONE = Mesh(ParallelPlan())
PLANS = {2: ("u2", "r2", "cfg2"), 3: ("u3", "r3"), 8: ("cfg2-u2-r2", "u4-r2")}
SCHEDULE = Schedule.plain(tuple(3 * t / (1 + 2 * t) for t in (1 - step / STEPS for step in range(STEPS + 1))))


@dataclass(eq=False)
class Video:
    """One guided job on a tiny transformer, to be denoised with Euler's steps on a mesh."""

    layout: str
    grid: tuple[int, int, int] = ODD
    dtype: torch.dtype = torch.float64
    seed: int = 3
    ours: WanTransformer = field(init=False)
    latents: Tensor = field(init=False)
    contexts: dict[Mesh, TextContext] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(5)
        module = tiny.transformer(self.layout, num_layers=LAYERS).to(self.dtype)
        self.ours = WanTransformer(module, clean_first_frame=self.layout == "wan22-ti2v")
        config, generator = self.ours.config, torch.Generator().manual_seed(self.seed)

        def noise(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.dtype)

        self.latents = noise(1, config.out_channels, *self.grid)
        self.fixed = noise(1, config.in_channels - config.out_channels, *self.grid)
        self.texts = [noise(count, config.text_dim) for count in (5, 17)]
        self.images = noise(1, 5, config.image_dim) if config.image_dim else None

    def context(self, mesh: Mesh) -> TextContext:
        if mesh not in self.contexts:
            texts = self.texts[branch_rows(2, mesh)]
            context = self.ours.prepare_text(texts, TEXT_LENGTH, branches=len(texts), image_embeds=self.images)
            self.contexts[mesh] = context
        return self.contexts[mesh]

    def velocity(self, latents: Tensor, step: int, mesh: Mesh, middle: MiddleBlocks | None) -> Tensor:
        timesteps = torch.tensor([1000 * SCHEDULE.sigmas[step]])
        rows = self.ours.forward(torch.cat((latents, self.fixed), dim=1), timesteps, self.context(mesh), mesh, middle)
        cond, uncond = rows.chunk(2)
        return uncond + 3.0 * (cond - uncond)


@dataclass
class Denoising:
    """A video on its way, on this rank."""

    video: Video
    cache: StepCache | None
    mesh: Mesh = ALONE
    epoch: str = ""
    step: int = 0

    def __post_init__(self) -> None:
        self.latents = self.before = self.video.latents

    def ctx(self) -> Any:
        assert self.cache is not None
        group = self.mesh.world.ranks
        return self.cache.schedule.at(self.step, request=self.cache.request, epoch=self.epoch, group=group)

    def middle(self) -> MiddleBlocks | None:
        return None if self.cache is None else MiddleBlocks(self.cache, self.ctx(), branches_here(2, self.mesh))

    def advance(self) -> None:
        velocity = self.video.velocity(self.latents, self.step, self.mesh, self.middle())
        if self.cache is not None and self.cache.decide(self.ctx()) is Decision.RUN:
            self.cache.note(self.ctx(), self.latents)
        self.mesh.end_step()
        self.before = self.latents
        self.latents = self.latents + (SCHEDULE.sigmas[self.step + 1] - SCHEDULE.sigmas[self.step]) * velocity
        self.step += 1

    def finish(self) -> Tensor:
        while self.step < STEPS:
            self.advance()
        return self.latents


def begin(
    video: Video,
    policy: FirstBlocks,
    mesh: Mesh = ALONE,
    *,
    request: str = "job",
    budget: Budget | None = None,
) -> Denoising:
    cache = StepCache(policy, SCHEDULE, request, budget=budget or Budget(1 << 30), reduce=reduction(mesh))
    return Denoising(video, cache, mesh)


def letters(run: Denoising) -> str:
    assert run.cache is not None
    receipt = run.cache.receipt()
    assert receipt["uncond_steps"] == receipt["steps"]
    told: str = receipt["steps"]
    return told


def distance(got: Tensor, truth: Tensor) -> float:
    """Relative L2."""
    return float((got.double() - truth.double()).norm() / truth.double().norm())
