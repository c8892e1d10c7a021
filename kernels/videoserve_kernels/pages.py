"""Keys and values of many sequences in blocks that any of them may share: one layer's paged cache."""

from typing import NamedTuple

from torch import Tensor


class Pages(NamedTuple):
    """`keys` and `values` [blocks, P, M, D] and `tables` int32 [B, W].

    Position p of sequence b lies in block tables[b, p // P] at p % P. A block is one contiguous run of each, and
    whatever a table names twice is stored once: a shared prefix. Made as two halves of a pool [blocks, 2, P, M, D], a
    block moves between machines and tiers in one piece. Where keys are values too, both may be the same tensor. Blocks
    that no position of interest lies in are never read, nor are table entries past it: they may hold anything.
    """

    keys: Tensor
    values: Tensor
    tables: Tensor

    @property
    def size(self) -> int:
        """Positions a block."""
        return self.keys.shape[1]
