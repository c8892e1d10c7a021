"""How the ranks of a request come to one decision: sums over all of them, and a check that all drew the same."""

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from videoserve_cache.steps.context import Decision, StepCtx

# The sum of a float64 tensor, which may lie on any device, over the ranks of a request's own group: the same bits on
# each of them.
Reduce = Callable[[Tensor, tuple[int, ...]], Tensor]
# Squares of codes below this add up exactly in float64 over any group.
CODES = 1 << 20


class DisagreementError(RuntimeError):
    """The ranks of a request took different decisions for a step: the job must fail, on every rank alike."""


class Agreement:
    """The two collectives of a decision that depends on what was measured; a rank alone needs none.

    Every rank of the group has both in every step that is probed, whatever it has seen so far, so that none waits for
    another.
    """

    def __init__(self, reduce: Reduce | None, policy: str) -> None:
        self._reduce = reduce
        self._policy = policy

    def total(self, sums: Tensor, ctx: StepCtx) -> list[float]:
        """This rank's sums, float64 [n], with those of the other ranks added."""
        totals: list[float] = self._over(sums, ctx).tolist()
        return totals

    def confirm(self, decision: Decision, ctx: StepCtx) -> None:
        """DisagreementError on every rank, unless all are at the same step with the same policy and decision."""
        if len(ctx.group) == 1:
            return
        told = f"{ctx.request} {ctx.epoch} {ctx.expert} {ctx.step} {decision} {self._policy}"
        code = zlib.crc32(told.encode()) % CODES
        total, squares = self._over(torch.tensor([code, code * code], dtype=torch.float64), ctx).tolist()
        # The variance is zero for equal codes only, and every rank sees the same variance.
        if squares * len(ctx.group) != total * total:
            raise DisagreementError(
                f"The ranks {', '.join(map(str, ctx.group))} do not agree about step {ctx.step} of {ctx.n_steps}; "
                f"this rank would {'compute' if decision is Decision.RUN else 'skip'} it."
            )

    def _over(self, sums: Tensor, ctx: StepCtx) -> Tensor:
        if len(ctx.group) == 1:
            return sums
        assert self._reduce is not None, f"a group of {len(ctx.group)} ranks needs a reduction"
        return self._reduce(sums, ctx.group)
