"""The memory of DeepSeek-V4's sequences: compressed entries in blocks, and rings of what a few tokens back left."""

from dataclasses import dataclass

import torch
from torch import Tensor

from videoserve.text.models.deepseek_v4_shape import V4Shape
from videoserve.text.pools import BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """One layer's. `window` [rings, W, D] and `rows` [rings, R, C] hold position p of a sequence at p mod W and R.

    `rows` are what entries are made of, of tokens whose entry, or the one after it, is not made yet. `entries`
    [blocks · E, D], and for the indexer `keys` [blocks · E, D'], have E places a block: an entry lies in the block of
    its last token, and where it takes several blocks' tokens only the last of them has one.
    """

    window: Tensor
    rows: Tensor | None = None
    entries: Tensor | None = None
    keys: Tensor | None = None

    @property
    def rings(self) -> tuple[Tensor, ...]:
        return (self.window,) if self.rows is None else (self.window, self.rows)


class V4Pool:
    """One LayerCache a layer."""

    def __init__(self, shape: V4Shape, blocks: int, rings: int, *, device: torch.device, dtype: torch.dtype):
        self.blocks, self.rings = blocks, rings
        self.layers: list[LayerCache] = []
        for layer in range(len(shape.kinds)):
            tensors = {}
            for name, (by_block, (places, channels)) in sizes_of(shape, layer).items():
                size = (blocks * places, channels) if by_block else (rings, places, channels)
                tensors[name] = torch.zeros(size, device=device, dtype=dtype)
            self.layers.append(LayerCache(**tensors))

    def copy_ring(self, source: int, target: int) -> None:
        """What a sequence left in its rings, for another one."""
        for layer in self.layers:
            for ring in layer.rings:
                ring[target] = ring[source]


def sizes_of(shape: V4Shape, layer: int) -> dict[str, tuple[bool, tuple[int, int]]]:
    """Of each tensor of a LayerCache whether it is by block, and its size for one block or ring."""
    sizes = {"window": (False, (shape.window - 1 + BLOCK, shape.head_dim))}
    if rate := shape.rate(layer):
        places = max(BLOCK // rate, 1)
        sparse = shape.kinds[layer] == "compressed_sparse_attention"
        sizes["rows"] = (False, (back(rate, overlaps=sparse) + BLOCK, row_width(shape, layer)))
        sizes["entries"] = (True, (places, shape.head_dim))
        if sparse:
            sizes["keys"] = (True, (places, shape.index_dim))
    return sizes


def back(rate: int, *, overlaps: bool) -> int:
    """How many positions before a token an entry that it completes, or takes part in, may begin."""
    return 2 * rate - 1 if overlaps else rate - 1


def row_width(shape: V4Shape, layer: int) -> int:
    """Channels of a row: values and gates, both twice where entries overlap, and the indexer's."""
    if shape.kinds[layer] == "compressed_sparse_attention":
        return 4 * (shape.head_dim + shape.index_dim)
    return 2 * shape.head_dim


def bytes_of(shape: V4Shape, itemsize: int, *, by_block: bool) -> int:
    """What a block, or a ring, takes in all layers."""
    sizes = [size for layer in range(len(shape.kinds)) for size in sizes_of(shape, layer).values()]
    return sum(places * channels for of_block, (places, channels) in sizes if of_block == by_block) * itemsize
