"""LoKr: W + scale · kron(w1, w2), each of the two in full or as a product of low rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from videoserve_lora.dtypes import Floats
from videoserve_lora.limits import slot_rank
from videoserve_lora.stored import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Kronecker:
    """`tensors` w1 [P, Q] or w1_a [P, r] and w1_b [r, Q]; w2 [M, N] or w2_a [M, r] and w2_b [r, N].

    P M = O and Q N = I.
    """

    kind: ClassVar[str] = "LoKr"
    tensors: Mapping[str, Stored]
    alpha: float | None

    @property
    def rank(self) -> int:
        """Of the factor that is a product; of two, of w1, as its trainer counts."""
        ranks = [self.tensors[role].shape[0] for role in ("lokr_w1_b", "lokr_w2_b") if role in self.tensors]
        return ranks[0] if ranks else min(self.tensors["lokr_w2"].shape)

    @property
    def full(self) -> bool:
        """Both in full: alpha then means nothing, and trainers write nonsense there."""
        return {"lokr_w1", "lokr_w2"} <= set(self.tensors)

    @property
    def factor(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def shape(self) -> tuple[int, int]:
        (p, q), (m, n) = (self._sides(name) for name in ("lokr_w1", "lokr_w2"))
        return p * m, q * n

    @property
    def low_rank(self) -> int | None:
        if "lokr_w2" in self.tensors:
            return None
        return slot_rank(self.tensors["lokr_w2_b"].shape[0] * self._inner("lokr_w1"))

    def factors(self) -> tuple[Floats, Floats]:
        """kron(w1, a b) = kron(w1, a) · kron(I, b), and kron(c d, a b) = kron(c, a) · kron(d, b)."""
        a, b = self.tensors["lokr_w2_a"].floats(), self.tensors["lokr_w2_b"].floats()
        if "lokr_w1" in self.tensors:
            c = self.tensors["lokr_w1"].floats()
            d = np.eye(c.shape[1], dtype=np.float32)
        else:
            c, d = self.tensors["lokr_w1_a"].floats(), self.tensors["lokr_w1_b"].floats()
        return np.kron(d, b), np.kron(c, a) * np.float32(self.factor)

    def dense(self) -> Floats:
        w1, w2 = self._matrix("lokr_w1"), self._matrix("lokr_w2")
        return np.kron(w1, w2) * np.float32(self.factor)

    def norm(self) -> float:
        w1, w2 = (np.linalg.norm(self._matrix(name).astype(np.float64)) for name in ("lokr_w1", "lokr_w2"))
        return float(w1 * w2) * self.factor

    def _matrix(self, name: str) -> Floats:
        if name in self.tensors:
            return self.tensors[name].floats()
        product: Floats = self.tensors[f"{name}_a"].floats() @ self.tensors[f"{name}_b"].floats()
        return product

    def _sides(self, name: str) -> tuple[int, int]:
        if name in self.tensors:
            rows, columns = self.tensors[name].shape
        else:
            rows, columns = self.tensors[f"{name}_a"].shape[0], self.tensors[f"{name}_b"].shape[1]
        return rows, columns

    def _inner(self, name: str) -> int:
        return self.tensors[name].shape[1] if name in self.tensors else self.tensors[f"{name}_b"].shape[0]
