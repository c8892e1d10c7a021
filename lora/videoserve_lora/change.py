"""What every kind of change to a weight can tell: its size, its low-rank factors if it has them, and itself in full."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

import numpy as np

from videoserve_lora.dtypes import Floats
from videoserve_lora.stored import Stored


class Change(Protocol):
    """A change of one module's weight [O, I]. `tensors` by their role; `alpha` is None where none counts.

    `rank` is that of its matrices; `factor` is what the file itself scales the change by.
    """

    kind: ClassVar[str]

    @property
    def tensors(self) -> Mapping[str, Stored]: ...

    @property
    def alpha(self) -> float | None: ...

    @property
    def rank(self) -> int: ...

    @property
    def factor(self) -> float: ...

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    @property
    def low_rank(self) -> int | None:
        """The rank of `factors`; None for a change that has no exact ones."""

    def factors(self) -> tuple[Floats, Floats]:
        """A [R, I] and B [O, R], whose product B A is the change; the factor is in B."""

    def dense(self) -> Floats:
        """The change [O, I]."""

    def norm(self) -> float:
        """The Frobenius norm of the change."""


def product_norm(a: Floats, b: Floats) -> float:
    """|B A| without the product: A [R, I], B [O, R]."""
    inner, outer = a.astype(np.float64) @ a.T.astype(np.float64), b.T.astype(np.float64) @ b.astype(np.float64)
    return float(np.sqrt(max((inner * outer).sum(), 0.0)))
