"""The memory that keys and values of all sequences share, in blocks of a few positions."""

import math

import torch
from torch import Tensor

from videoserve.text.shape import Shape
from videoserve_kernels.pages import Pages

# Positions a block: what a shared prefix is a multiple of.
BLOCK = 16


def blocks_within(gib: float, block: int, *, beside: int = 0) -> int:
    """How many blocks of so many bytes fit, `beside` bytes of other things. Raises ValueError for less than two."""
    blocks = int((gib * 2**30 - beside) / block)
    if blocks < 2:
        raise ValueError(f"chat_cache_gb is {gib:g}; what two blocks need takes {2 * block + beside} bytes.")
    return blocks


class KvPool:
    """`keys` and `values` [layers, blocks, BLOCK, M, D]. Everything is kept by position: it has no rings."""

    rings = 0

    def __init__(self, shape: Shape, blocks: int, *, device: torch.device, dtype: torch.dtype):
        size = (shape.layers, blocks, BLOCK, shape.kv_heads, shape.head_dim)
        self.blocks = blocks
        self.keys = torch.zeros(size, device=device, dtype=dtype)
        self.values = torch.zeros(size, device=device, dtype=dtype)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Of what `read` gives."""
        layers, _, *rest = self.keys.shape
        return (2, layers, *rest)

    @property
    def values_a_block(self) -> int:
        return math.prod(self.block_shape)

    def pages(self, layer: int, tables: Tensor) -> Pages:
        """One layer's half of the pool, under the tables of a batch."""
        return Pages(self.keys[layer], self.values[layer], tables)

    def read(self, block: int) -> Tensor:
        """A block's keys and values of all layers, [2, layers, BLOCK, M, D] on the CPU."""
        return torch.stack((self.keys[:, block], self.values[:, block])).cpu()

    def write(self, block: int, content: Tensor) -> None:
        """What `read` gave, of any block of an equal pool."""
        self.keys[:, block] = content[0]
        self.values[:, block] = content[1]
