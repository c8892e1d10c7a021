"""LoHa: W + alpha / r · (w1_a w1_b) ∘ (w2_a w2_b)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from videoserve_lora.dtypes import Floats
from videoserve_lora.limits import slot_rank
from videoserve_lora.stored import Stored

# Rows of the change that are computed at a time for its norm.
ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Hadamard:
    """`tensors` hada_w1_a [O, r], hada_w1_b [r, I], hada_w2_a [O, s], hada_w2_b [s, I]."""

    kind: ClassVar[str] = "LoHa"
    roles: ClassVar[frozenset[str]] = frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"})
    tensors: Mapping[str, Stored]
    alpha: float | None

    @property
    def rank(self) -> int:
        return self.tensors["hada_w1_b"].shape[0]

    @property
    def factor(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def shape(self) -> tuple[int, int]:
        return self.tensors["hada_w1_a"].shape[0], self.tensors["hada_w1_b"].shape[1]

    @property
    def low_rank(self) -> int | None:
        return slot_rank(self.rank * self.tensors["hada_w2_b"].shape[0])

    def factors(self) -> tuple[Floats, Floats]:
        """Every product of a rank of the one with a rank of the other is a rank of the whole."""
        w1_a, w1_b, w2_a, w2_b = self._matrices()
        a = (w1_b[:, None, :] * w2_b[None, :, :]).reshape(-1, w1_b.shape[1])
        b = (w1_a[:, :, None] * w2_a[:, None, :]).reshape(w1_a.shape[0], -1)
        return a, b * np.float32(self.factor)

    def dense(self) -> Floats:
        w1_a, w1_b, w2_a, w2_b = self._matrices()
        change: Floats = (w1_a @ w1_b) * (w2_a @ w2_b) * np.float32(self.factor)
        return change

    def norm(self) -> float:
        w1_a, w1_b, w2_a, w2_b = self._matrices()
        rows = range(0, w1_a.shape[0], ROWS)
        parts = ((w1_a[at : at + ROWS] @ w1_b) * (w2_a[at : at + ROWS] @ w2_b) for at in rows)
        return self.factor * float(np.sqrt(sum(np.square(part, dtype=np.float64).sum() for part in parts)))

    def _matrices(self) -> tuple[Floats, Floats, Floats, Floats]:
        w1_a, w1_b, w2_a, w2_b = (self.tensors[role].floats() for role in sorted(self.roles))
        return w1_a, w1_b, w2_a, w2_b
