"""What a request keeps between its steps: copies in buffers of its own, under a budget that all requests share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from videoserve_cache.steps.context import Branch, StepCtx
from videoserve_cache.steps.extrapolate import Anchor

Key = tuple[int, Branch, str]


class BudgetExceededError(RuntimeError):
    """A request wants to keep more than the budget has left; the message says how much."""


@dataclass(slots=True)
class Budget:
    """Bytes that the step caches of all requests on a rank may hold together."""

    limit: int
    held: int = 0

    def take(self, size: int) -> None:
        """BudgetExceededError when it does not fit; then nothing is taken."""
        self.check(size)
        self.held += size

    def check(self, size: int) -> None:
        """BudgetExceededError when it does not fit."""
        if self.held + size > self.limit:
            raise BudgetExceededError(
                f"A step cache needs {size} bytes more; {self.held} of the budget's {self.limit} bytes are taken."
            )

    def give_back(self, size: int) -> None:
        self.held -= size


@dataclass(slots=True, eq=False)
class Ring:
    """The newest values of one key, oldest first, and buffers that are free."""

    anchors: list[Anchor] = field(default_factory=list)
    free: list[Tensor] = field(default_factory=list)
    size: int = 0


class Store:
    """The values of one request by expert, branch and stream.

    The buffers of a key are made when it is first kept, all at once, and used again for every later step.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._rings: dict[Key, Ring] = {}
        self.peak = 0

    @property
    def nbytes(self) -> int:
        return sum(ring.size for ring in self._rings.values())

    @torch.inference_mode()
    def put(self, ctx: StepCtx, stream: str, value: Tensor, depth: int = 1) -> None:
        """Copies a value in, in place of the oldest of `depth`. BudgetExceededError changes nothing."""
        self._keep((ctx.expert, ctx.branch, stream), ctx.step, ctx.sigma, value, depth)

    def anchors(self, ctx: StepCtx, stream: str) -> list[Anchor]:
        """What is kept of the context's expert and branch, oldest first."""
        ring = self._rings.get((ctx.expert, ctx.branch, stream))
        return [] if ring is None else list(ring.anchors)

    def newest(self, ctx: StepCtx, stream: str) -> Tensor | None:
        anchors = self.anchors(ctx, stream)
        return anchors[-1].value if anchors else None

    def drop(self) -> None:
        """Lets everything go, and gives its bytes back."""
        for ring in self._rings.values():
            self._budget.give_back(ring.size)
        self._rings.clear()

    def state(self, streams: Sequence[str] | None = None) -> tuple[dict[str, Tensor], list[list[Any]]]:
        """CPU tensors by name, and JSON that says what each is; of all streams, or of these."""
        tensors: dict[str, Tensor] = {}
        about: list[list[Any]] = []
        for (expert, branch, stream), depth, anchor in self._each():
            if streams is not None and stream not in streams:
                continue
            name = f"cache.{len(about)}"
            tensors[name] = anchor.value.to("cpu", copy=True)
            about.append([name, expert, branch, stream, depth, anchor.step, anchor.sigma.hex()])
        return tensors, about

    @torch.inference_mode()
    def restore(self, tensors: dict[str, Tensor], about: list[list[Any]], device: torch.device) -> None:
        """What `state` described, into an empty store."""
        for name, expert, branch, stream, depth, step, sigma in about:
            self._keep((expert, branch, stream), step, float.fromhex(sigma), tensors[name].to(device), depth)

    def _keep(self, key: Key, step: int, sigma: float, value: Tensor, depth: int) -> None:
        ring = self._rings.get(key) or self._make(key, value, depth)
        buffer = ring.free.pop() if ring.free else ring.anchors.pop(0).value
        # The caller's tensor may be written to by a block that works in place.
        ring.anchors.append(Anchor(step, sigma, buffer.copy_(value)))

    def _make(self, key: Key, value: Tensor, depth: int) -> Ring:
        size = depth * value.nbytes
        self._budget.take(size)
        ring = Ring(free=[torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(depth)])
        ring.size = size
        self._rings[key] = ring
        self.peak = max(self.peak, self.nbytes)
        return ring

    def _each(self) -> Iterator[tuple[Key, int, Anchor]]:
        for key, ring in self._rings.items():
            depth = len(ring.anchors) + len(ring.free)
            for anchor in ring.anchors:
                yield key, depth, anchor
