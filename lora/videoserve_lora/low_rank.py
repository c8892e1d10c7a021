"""The plain adapter: W + alpha / r · B A."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from videoserve_lora.change import product_norm
from videoserve_lora.dtypes import Floats
from videoserve_lora.stored import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """`tensors` a [r, I] and b [O, r], of a convolution with the axes of its window; b_bias [O] in some files."""

    kind: ClassVar[str] = "LoRA"
    roles: ClassVar[frozenset[str]] = frozenset({"a", "b"})
    tensors: Mapping[str, Stored]
    alpha: float | None

    @property
    def rank(self) -> int:
        return self.tensors["a"].shape[0]

    @property
    def factor(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def shape(self) -> tuple[int, int]:
        a, b = self.tensors["a"], self.tensors["b"]
        return b.shape[0], a.entry.numbers // a.shape[0]

    @property
    def low_rank(self) -> int | None:
        return self.rank

    def factors(self) -> tuple[Floats, Floats]:
        return self.tensors["a"].rows(), self.tensors["b"].rows() * np.float32(self.factor)

    def dense(self) -> Floats:
        a, b = self.factors()
        return b @ a

    def norm(self) -> float:
        return product_norm(*self.factors())
