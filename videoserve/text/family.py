"""What every family of chat models gives the engine."""

from typing import Any, Protocol

import torch
from torch import Tensor

from videoserve.text.adapted import Adapted
from videoserve.text.batch import Batch
from videoserve.text.sharing import Layout
from videoserve_lora.slots import Slots


class ModelShape(Protocol):
    """`vocabulary` tokens are known; a sequence has at most `context` of them."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def context(self) -> int: ...


class Pool(Protocol):
    """The memory of all sequences: `blocks` of a few positions, and `rings` that each belong to one sequence.

    Rings hold what a sequence leaves that is not kept by position: a family without has none of them.
    """

    blocks: int
    rings: int

    def copy_ring(self, source: int, target: int) -> None: ...


class Model(Protocol):
    """One loaded model, or a rank's share of it; only its own pools fit it. `layouts` are those it can compute by."""

    device: torch.device
    layouts: tuple[Layout, ...]

    @property
    def shape(self) -> ModelShape: ...

    def pool(self, gib: float, streams: int) -> Any:
        """A Pool for `streams` sequences at once. Raises ValueError when it does not fit."""

    def adapted(self, slots: Slots) -> Adapted:
        """What adapters add to its matrices. Raises ValueError, a sentence, for those that are not for it."""

    def forward(self, batch: Batch, pool: Any, layout: Layout = "heads") -> Tensor:
        """Logits float32 [L, vocabulary] of the wanted tokens, on every rank. Every rank calls it."""
