"""A denoising loop of a few numbers, wired to a step cache as the engine does it, whose residuals are known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from videoserve_cache.steps.agreement import Reduce
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.calibration import Calibration, Sample, Subject
from videoserve_cache.steps.context import LEAD, Branch, Decision, StepCtx
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.recorder import Recorder
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

SHAPE = (1, 3, 2, 4, 5)
GUIDANCE = 3.0
EPOCH = "weights"
SUBJECT = Subject(
    model="ab" * 32,
    adapters=("cd@0.5",),
    solver="euler",
    steps=20,
    size=(17, 96, 96),
    dtype="float32",
    guidance=(3.0,),
)

# velocity = model(latents, context)
Model = Callable[[Tensor, StepCtx], Tensor]


def even(steps: int, *, guided: bool = False, boundary: int | None = None) -> Schedule:
    """Sigmas from 1 to 0, bent like a flow's with a shift; another expert from step `boundary` on."""
    line = [1 - step / steps for step in range(steps + 1)]
    sigmas = tuple(3 * t / (1 + 2 * t) for t in line)
    experts = tuple(int(boundary is not None and step >= boundary) for step in range(steps))
    return Schedule(sigmas=sigmas, experts=experts, guided=(guided,) * steps)


def noise(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def polynomial(order: int, seed: int = 0) -> Model:
    """output - input is a polynomial of that order in sigma, another one for each expert and branch."""

    def velocity(latents: Tensor, ctx: StepCtx) -> Tensor:
        first = 100 * seed + 10 * ctx.expert + 50 * (ctx.branch != LEAD)
        residual = sum((noise(first + power) * ctx.sigma**power for power in range(order + 1)), torch.zeros(SHAPE))
        return latents + residual

    return velocity


def smooth(seed: int = 0) -> Model:
    """A small nonlinear model: its residual is no polynomial, and depends on the latents."""
    weight = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 2

    def velocity(latents: Tensor, ctx: StepCtx) -> Tensor:
        mixed = torch.einsum("oc,bcfhw->bofhw", weight, latents)
        return torch.tanh(mixed * (0.5 + ctx.sigma) + 0.3 * (ctx.branch != LEAD)) - 0.5 * latents

    return velocity


@dataclass
class Generation:
    """One request, step by step. `calls` counts the forwards of each branch."""

    model: Model
    cache: StepCache
    latents: Tensor
    epoch: str = EPOCH
    group: tuple[int, ...] = (0,)
    calls: dict[Branch, int] = field(default_factory=dict)
    before: dict[int, Tensor] = field(default_factory=dict)
    step: int = 0

    def advance(self) -> None:
        ctx = self.cache.schedule.at(self.step, request=self.cache.request, epoch=self.epoch, group=self.group)
        self.before[self.step] = self.latents
        out = guided(self.branch, ctx)
        owed = self.cache.owed(ctx) if self.cache.decide(ctx) is Decision.RUN else []
        if owed:
            self.latents = self.before[owed[0].step]
            for past in owed:
                again = guided(lambda branch: self.cache.estimate(branch, self.latents), past)
                self.latents = self.latents + (past.sigma_next - past.sigma) * again
        self.latents = self.latents + (ctx.sigma_next - ctx.sigma) * out
        self.step += 1

    def branch(self, ctx: StepCtx) -> Tensor:
        if self.cache.decide(ctx, self.latents if ctx.branch == LEAD else None) is Decision.SKIP:
            return self.cache.estimate(ctx, self.latents)
        self.calls[ctx.branch] = self.calls.get(ctx.branch, 0) + 1
        out = self.model(self.latents, ctx)
        self.cache.keep(ctx, self.latents, out)
        return out

    def finish(self) -> Tensor:
        while self.step < self.cache.schedule.n_steps:
            self.advance()
        return self.latents


def begin(
    policy: Policy,
    schedule: Schedule,
    model: Model,
    *,
    seed: int = 9,
    request: str = "request",
    budget: Budget | None = None,
    reduce: Reduce | None = None,
) -> Generation:
    cache = StepCache(policy, schedule, request, budget=budget or Budget(1 << 30), reduce=reduce)
    return Generation(model, cache, noise(seed))


def guided(branch: Callable[[StepCtx], Tensor], ctx: StepCtx) -> Tensor:
    """The velocity with guidance, where there is any."""
    out = branch(ctx)
    if not ctx.guided:
        return out
    uncond = branch(ctx.of("uncond"))
    return uncond + GUIDANCE * (out - uncond)


def uncached(schedule: Schedule, model: Model, *, seed: int = 9) -> Tensor:
    """The same loop without any cache."""
    latents = noise(seed)
    for step in range(schedule.n_steps):
        ctx = schedule.at(step, epoch=EPOCH)
        out = guided(partial(model, latents), ctx)
        latents = latents + (ctx.sigma_next - ctx.sigma) * out
    return latents


def recorded(schedule: Schedule, model: Model, seed: int) -> Sample:
    recorder, latents = Recorder(), noise(seed)
    for step in range(schedule.n_steps):
        ctx = schedule.at(step, epoch=EPOCH)
        velocity = model(latents, ctx)
        recorder.step(latents, velocity)
        latents = latents + (ctx.sigma_next - ctx.sigma) * velocity
    return recorder.finish(latents)


def measured(schedule: Schedule, model: Model, seeds: int = 2) -> Calibration:
    """A calibration of that many uncached videos, in which a computed step takes 1 s and the rest 2 s."""
    samples = tuple(recorded(schedule, model, seed) for seed in range(seeds))
    return Calibration(subject=SUBJECT, schedule=schedule, samples=samples, run_s=1.0, skip_s=0.01, fixed_s=2.0)


class Stack:
    """Blocks over tokens [1, S, C], the last of which write into what they are given when `in_place`."""

    def __init__(self, blocks: int, *, in_place: bool = False) -> None:
        generator = torch.Generator().manual_seed(blocks)
        self.weights = [torch.randn(4, 4, generator=generator, dtype=torch.float64) / 3 for _ in range(blocks)]
        self.in_place = in_place
        self.computed = 0

    def run(self, x: Tensor, blocks: range, sigma: float) -> Tensor:
        for index in blocks:
            self.computed += 1
            change = torch.tanh(x @ self.weights[index] + sigma)
            x = x.add_(change) if self.in_place else x + change
        return x

    def forward(self, tokens: Tensor, ctx: StepCtx, cache: StepCache) -> Tensor:
        """A forward with a first_blocks policy, as the engine does it."""
        policy = cache.policy
        assert isinstance(policy, FirstBlocks)
        middle = policy.middle(len(self.weights))
        x = self.run(tokens.clone(), range(middle.start), ctx.sigma)
        if cache.decide(ctx, x - tokens) is Decision.SKIP:
            x = cache.estimate(ctx, x)
        else:
            before = x.clone() if self.in_place else x
            x = self.run(x, middle, ctx.sigma)
            cache.keep(ctx, before, x)
        return self.run(x, range(middle.stop, len(self.weights)), ctx.sigma)
