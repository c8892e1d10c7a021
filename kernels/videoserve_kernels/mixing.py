"""The weights by which the streams of a residual are mixed."""

from typing import NamedTuple

from torch import Tensor


class Mixing(NamedTuple):
    """float32 `weight` [M, H·C], `bias` [M] and `scale`.

    To open streams M is (2 + H)·H: H to take out, H to put back, H·H to mix, with a scale [3] of each. To join them it
    is H, with a scale [1].
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
