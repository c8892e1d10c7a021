"""The middle blocks of one job's forward, which its step cache may leave out: the policy first_blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from videoserve_cache.steps.agreement import Reduce
from videoserve_cache.steps.cache import StepCache
from videoserve_cache.steps.context import LEAD, Branch, Decision, StepCtx
from videoserve_cache.steps.first_blocks import FirstBlocks
from videoserve_kernels.comm.collectives import all_reduce
from videoserve_kernels.comm.gather import branch_rows
from videoserve_kernels.comm.mesh import Mesh


class MiddleBlocks:
    """One step of one job on one rank, with this rank's part of what the job keeps; for one forward.

    Every rank of the mesh has one in the same forward: the change that decides is that of the whole video, added up
    over all of them. `again` computes an earlier step once more, to put back what a resumed job has lost.
    """

    def __init__(self, cache: StepCache, ctx: StepCtx, branches: Sequence[Branch], *, again: bool = False) -> None:
        """ctx is cond's; `branches` are those that this rank computes, a row each."""
        self._cache = cache
        self._ctx = ctx
        self._branches = branches
        self._again = again
        self._middle = range(0)
        self._skipped = range(0)
        self._tokens: Tensor | None = None
        self._before: Tensor | None = None

    def begin(self, tokens: Tensor, blocks: int) -> None:
        """The tokens [1, S, C] before the first of so many blocks."""
        assert isinstance(self._cache.policy, FirstBlocks)
        self._middle = self._cache.policy.middle(blocks)
        self._tokens = tokens

    def at(self, layer: int, x: Tensor) -> Tensor:
        """Before each block, and after the last: x [R, S, C], or what the middle would have made of it.

        DisagreementError when the ranks would not do the same.
        """
        if layer == self._middle.start:
            if self._decide(x) is Decision.SKIP:
                self._skipped = self._middle
                return torch.cat([self._cache.estimate(self._ctx.of(branch), row) for branch, row in self._each(x)])
            self._before = x
        if layer == self._middle.stop and self._before is not None:
            for (branch, inputs), (_, output) in zip(self._each(self._before), self._each(x), strict=True):
                self._cache.keep(self._ctx.of(branch), inputs, output)
            self._before = None
        return x

    def leaves_out(self, layer: int) -> bool:
        """Whether this block is not computed."""
        return layer in self._skipped

    def _decide(self, x: Tensor) -> Decision:
        tokens, self._tokens = self._tokens, None
        assert tokens is not None, "a forward has its own"
        added = x[:1] - tokens if self._branches[0] == LEAD else None
        if self._again:
            self._cache.refill(self._ctx, added)
            return Decision.RUN
        decision = self._cache.decide(self._ctx, added)
        if self._ctx.guided:
            # Asked in every step, as cond is, so that it has run as often and follows in all of them.
            assert self._cache.decide(self._ctx.of("uncond")) is decision, "uncond does not follow cond"
        return decision

    def _each(self, x: Tensor) -> list[tuple[Branch, Tensor]]:
        """The row of each branch, [1, S, C]."""
        return list(zip(self._branches, x.chunk(len(self._branches)), strict=True))


def reduction(mesh: Mesh) -> Reduce:
    """How the ranks of a mesh add up what decides; all of them compute the same job."""

    def reduce(sums: Tensor, group: tuple[int, ...]) -> Tensor:
        assert group == mesh.world.ranks, f"a job of the ranks {group} on a mesh of {mesh.world.ranks}"
        return all_reduce(sums.to(mesh.device), mesh.world).wait()

    return reduce


def branches_here(branches: int, mesh: Mesh) -> Sequence[Branch]:
    """Those of a job's one or two guidance branches that this rank of the mesh computes."""
    both: tuple[Branch, ...] = (LEAD, "uncond")
    return both[:branches][branch_rows(branches, mesh)]
