"""Several ranks with shards of their own take one decision, or all fail."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock

import pytest
import torch
from torch import Tensor

from tests.toy_denoiser import Stack, even, noise
from videoserve_cache.steps.agreement import DisagreementError
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.latent import Latent
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

TOKENS = 23


class World:
    """Ranks as threads; a reduction waits for all of them, and for none longer than two minutes."""

    def __init__(self, ranks: int) -> None:
        self.group = tuple(range(ranks))
        self.barrier = Barrier(ranks, timeout=120)
        self.lock = Lock()
        self.parts: list[Tensor] = []
        self.calls = 0

    def reduce(self, part: Tensor, group: tuple[int, ...]) -> Tensor:
        assert group == self.group, "the reduction goes over the request's own group"
        with self.lock:
            self.parts.append(part)
            self.calls += 1
        self.barrier.wait()
        # Floats add up to other bits in another order: every rank must see the same.
        total = torch.stack(sorted(self.parts, key=lambda p: p.tolist())).sum(dim=0)
        if self.barrier.wait() == 0:
            self.parts.clear()
        self.barrier.wait()
        return total

    def cache(self, policy: Policy, schedule: Schedule) -> StepCache:
        return StepCache(policy, schedule, "request", budget=Budget(1 << 20), reduce=self.reduce)


def activations(step: int) -> Tensor:
    """Tokens [1, S, C] that move unevenly: in half of the steps only one token does."""
    generator = torch.Generator().manual_seed(0)
    still = torch.randn(1, TOKENS, 4, generator=generator, dtype=torch.float64)
    drawn = torch.randn(1, TOKENS, 4, generator=generator, dtype=torch.float64)
    where = slice(step % TOKENS, step % TOKENS + 1) if step % 2 else slice(None)
    moving = torch.zeros_like(still)
    moving[:, where] = drawn[:, where]
    return still + 0.02 * step * moving


def decide_all(world: World, rank: int, bounds: list[int], policies: list[Policy], *, lost: int | None = None) -> str:
    """The letters of a rank that holds the tokens between two bounds; rank `lost` holds none of the deciding branch."""
    schedule = even(20)
    cache = world.cache(policies[rank], schedule)
    mine = slice(bounds[rank], bounds[rank + 1])
    letters = ""
    for step in range(schedule.n_steps):
        ctx = schedule.at(step, request="request", group=world.group)
        shard = activations(step)[:, mine]
        decision = cache.decide(ctx, None if rank == lost else shard)
        if decision is Decision.RUN:
            cache.keep(ctx, shard, 2 * shard)
        else:
            cache.estimate(ctx, shard)
        letters += decision
    return letters


def in_threads(world: World, bounds: list[int], policies: list[Policy], *, lost: int | None = None) -> list[str]:
    with ThreadPoolExecutor(len(world.group)) as pool:
        ranks = [pool.submit(decide_all, world, rank, bounds, policies, lost=lost) for rank in world.group]
        return [rank.result() for rank in ranks]


def uneven(ranks: int) -> list[int]:
    """Where each rank's tokens begin: one rank has most of them."""
    return [*range(ranks), TOKENS]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_with_uneven_shards_decide_like_a_rank_alone(ranks: int) -> None:
    policy = FirstBlocks(threshold=0.1)
    alone = decide_all(World(1), 0, [0, TOKENS], [policy])
    world = World(ranks)
    assert "." in alone
    assert "R" in alone[4:-1]
    assert in_threads(world, uneven(ranks), [policy] * ranks) == [alone] * ranks
    # Two a step on every rank, the first and the last step included.
    assert world.calls == ranks * 2 * 20


def test_a_rank_without_the_deciding_branch_takes_the_others_decision() -> None:
    policy = FirstBlocks(threshold=0.1)
    alone = decide_all(World(1), 0, [0, TOKENS], [policy])
    assert in_threads(World(3), [0, 11, TOKENS, TOKENS], [policy] * 3, lost=2) == [alone] * 3


@pytest.mark.parametrize(
    "other",
    [FirstBlocks(threshold=0.5), FirstBlocks(threshold=0.1, guards=Guards(max_skips=1)), FirstBlocks(threshold=1e-9)],
)
def test_another_decision_on_one_rank_fails_all(other: Policy) -> None:
    world = World(3)
    policies = [FirstBlocks(threshold=0.1), FirstBlocks(threshold=0.1), other]
    with ThreadPoolExecutor(3) as pool:
        ranks = [pool.submit(decide_all, world, rank, uneven(3), policies) for rank in world.group]
        for rank in ranks:
            with pytest.raises(DisagreementError, match="The ranks 0, 1, 2 do not agree about step 0 of 20"):
                rank.result()


def test_a_rank_that_decides_otherwise_at_one_step_fails_all() -> None:
    class Stray(FirstBlocks):
        """The same policy by its parameters, but with a mind of its own at step 7."""

        def decide(self, ctx, history, scalar):  # type: ignore[no-untyped-def]
            wanted = super().decide(ctx, history, scalar)
            return (Decision.RUN if wanted is Decision.SKIP else Decision.SKIP) if ctx.step == 7 else wanted

    world = World(2)
    policies: list[Policy] = [FirstBlocks(threshold=0.1), Stray(threshold=0.1)]
    with ThreadPoolExecutor(2) as pool:
        ranks = [pool.submit(decide_all, world, rank, uneven(2), policies) for rank in world.group]
        for rank in ranks:
            with pytest.raises(DisagreementError, match="step 7 of 20"):
                rank.result()


def test_ranks_with_shards_of_the_latents_agree_too() -> None:
    schedule = even(16)
    policy = Latent(threshold=0.3)

    def letters(world: World, rank: int, mine: slice) -> str:
        cache, decided = world.cache(policy, schedule), ""
        for step in range(schedule.n_steps):
            ctx = schedule.at(step, request="request", group=world.group)
            latents = noise(1) * ctx.sigma + noise(2)
            latents = latents[:, :, :, mine]
            decision = cache.decide(ctx, latents)
            if decision is Decision.RUN:
                cache.keep(ctx, latents, torch.tanh(latents))
            decided += decision
        return decided

    alone = letters(World(1), 0, slice(None))
    assert "." in alone
    world = World(2)
    with ThreadPoolExecutor(2) as pool:
        parts = (slice(0, 1), slice(1, None))
        ranks = [pool.submit(letters, world, rank, part) for rank, part in enumerate(parts)]
        assert [rank.result() for rank in ranks] == [alone] * 2


def test_a_static_policy_and_a_rank_alone_need_no_collective() -> None:
    stack, schedule = Stack(4), even(6)
    cache = StepCache(FirstBlocks(threshold=0.1), schedule, "request", budget=Budget(1 << 20))
    for step in range(6):
        stack.forward(activations(step), schedule.at(step, request="request"), cache)
    world = World(2)
    static = world.cache(FirstBlocks(threshold=0.0), schedule)
    for step in range(6):
        static.decide(schedule.at(step, request="request", group=(0, 1)), activations(step))
    assert world.calls == 0
