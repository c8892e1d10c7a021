"""Matrices in 8 bits a value, as the products of gemm.py take them."""

from typing import NamedTuple

from torch import Tensor

# The side of a block of scales that DeepSeek's and most other float8 checkpoints have; 32 is the other one.
BLOCK = 128


class Codes(NamedTuple):
    """`values` [M, K], int8 or float8_e4m3fn, and float32 `scales`.

    With `block` 0 a row has one scale, [M]. Else `block` channels share one: of a row on its own, [M, ⌈K/block⌉], or of
    `block` rows, [⌈M/block⌉, ⌈K/block⌉].
    """

    values: Tensor
    scales: Tensor
    block: int = 0
