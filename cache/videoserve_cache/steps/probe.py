"""What a policy looks at before it decides: sums that ranks add up, and the one number they make."""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.policy import ProbeKind
from videoserve_cache.steps.store import Store
from videoserve_kernels.drift import drift

# What the store calls the streams that only probes read.
SEEN = "seen"
INPUT = "input"
OUTPUT = "output"
FIRST = "first"


class Probe(Protocol):
    """`pending` holds float64 sums of earlier steps that the next reduction takes along.

    `again` says that what is kept of a step is each rank's own, and computed again by a job that is resumed.
    """

    again: ClassVar[bool]
    pending: Tensor

    def sums(self, ctx: StepCtx, store: Store, x: Tensor | None, mask: Tensor | None) -> Tensor:
        """This rank's part, float64, of the same length at every step; zeros where there is nothing to compare."""
        ...

    def scalar(self, totals: list[float]) -> float:
        """The number that the sums over all ranks make; NaN where they make none."""
        ...

    def decided(self, ctx: StepCtx, store: Store, x: Tensor | None, decision: Decision) -> None:
        """Called at every step, once it is decided."""
        ...

    def computed(self, ctx: StepCtx, store: Store, inputs: Tensor, output: Tensor, mask: Tensor | None) -> None:
        """Called at computed steps, once they are."""
        ...


class LatentProbe:
    """Looks at the latents before the transformer and at what it made of them (EasyCache).

    The number is k · Σ|input - the step before's| / Σ|last computed output|, where k is what the last two computed
    outputs differ by, for each unit their inputs differ by.
    """

    again: ClassVar[bool] = False

    def __init__(self) -> None:
        # Σ|output - the one before|, Σ|input - the one before| and Σ|output| of the last computed step.
        self.pending = torch.zeros(3, dtype=torch.float64)

    def sums(self, ctx: StepCtx, store: Store, x: Tensor | None, mask: Tensor | None) -> Tensor:
        moved = moved_since(x, store.newest(ctx, SEEN), mask)
        return torch.cat((moved[:1], self.pending.to(moved.device)))

    def scalar(self, totals: list[float]) -> float:
        moved, output_moved, input_moved, size = totals
        return ratio(output_moved, input_moved) * ratio(moved, size)

    def decided(self, ctx: StepCtx, store: Store, x: Tensor | None, decision: Decision) -> None:
        if x is not None:
            store.put(ctx, SEEN, x)

    def computed(self, ctx: StepCtx, store: Store, inputs: Tensor, output: Tensor, mask: Tensor | None) -> None:
        effect = moved_since(output, store.newest(ctx, OUTPUT), mask)[:1]
        change = moved_since(inputs, store.newest(ctx, INPUT), mask)[:1]
        size = moved_since(output, output, mask)[1:2]
        self.pending = torch.cat([part.to(size.device) for part in (effect, change, size)])
        store.put(ctx, INPUT, inputs)
        store.put(ctx, OUTPUT, output)


class BlocksProbe:
    """Looks at what the first blocks add to the tokens, against the same at the last computed step (DBCache).

    The number is Σ|now - then| / Σ|then|.
    """

    again: ClassVar[bool] = True

    def __init__(self) -> None:
        self.pending = torch.zeros(0, dtype=torch.float64)

    def sums(self, ctx: StepCtx, store: Store, x: Tensor | None, mask: Tensor | None) -> Tensor:
        return moved_since(x, store.newest(ctx, FIRST), mask)[:2]

    def scalar(self, totals: list[float]) -> float:
        moved, size = totals
        return ratio(moved, size)

    def decided(self, ctx: StepCtx, store: Store, x: Tensor | None, decision: Decision) -> None:
        # Compared with the last computed step, never with the last one: small changes would add up unseen.
        if x is not None and decision is Decision.RUN:
            store.put(ctx, FIRST, x)

    def computed(self, ctx: StepCtx, store: Store, inputs: Tensor, output: Tensor, mask: Tensor | None) -> None:
        pass


PROBES: dict[ProbeKind, type[LatentProbe] | type[BlocksProbe]] = {"latent": LatentProbe, "blocks": BlocksProbe}


def moved_since(now: Tensor | None, before: Tensor | None, mask: Tensor | None) -> Tensor:
    """Σ|now - before|, Σ|before| and the count, float64 [3], over all rows; zeros where one of the two is not there.

    mask bool [B, S] as in drift.
    """
    if now is None or before is None:
        return torch.zeros(3, dtype=torch.float64)
    common = torch.promote_types(now.dtype, before.dtype)
    rows = [x.to(common).flatten(2) for x in (now, before)]  # [B, S, C]
    return drift(*rows, mask=mask).double().sum(dim=0)


def ratio(part: float, whole: float) -> float:
    """part / whole; NaN, with which nothing is skipped, where the whole is nothing."""
    return part / whole if whole > 0 else float("nan")
