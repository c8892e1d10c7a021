"""Pictures cut into bands of rows, one a rank: what a convolution sees of its neighbours, and the whole again."""

from collections.abc import Sequence
from itertools import count

import torch
from torch import Tensor

from videoserve_kernels.comm.exchange import Group, exchange
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.split import slices, split

# Messages between bands stand beside the order of the group's collectives: ranks without rows have none to post.
NUMBERS = 2**62 + 1


class Rows:
    """Which rows of pictures of `height` rows this rank of a mesh holds, and how it meets the others.

    The rows are dealt out once, before any layer; a layer that doubles them doubles every band. With fewer rows than
    ranks the last ranks have none, and take no part until the bands are collected.
    """

    def __init__(self, mesh: Mesh, height: int) -> None:
        self._mesh = mesh
        self.sizes = split(height, mesh.world.size)
        self._holders = sum(1 for size in self.sizes if size)
        self._numbers = count(NUMBERS, 2)

    @property
    def group(self) -> Group:
        # Asked each time: a mesh may have been renewed between two pieces of a clip.
        return self._mesh.world

    @property
    def here(self) -> slice:
        """The rows of this rank, of `height`."""
        return slices(self.sizes)[self.group.index]

    @property
    def whole(self) -> bool:
        """Whether this rank holds every row: nothing moves then."""
        return self.group.size == 1

    def with_borders(self, x: Tensor) -> Tensor:
        """x [B, F, h, W, C] with one more row above and below, [B, F, h + 2, W, C].

        They are the neighbours' nearest ones, and zeros beyond the picture. Two messages a rank.
        """
        index, last = self.group.index, self._holders - 1
        outgoing, incoming = {}, {}
        above, below = (torch.zeros_like(x[:, :, :1], memory_format=torch.contiguous_format) for _ in range(2))
        if index > 0:
            outgoing[index - 1], incoming[index - 1] = x[:, :, :1].contiguous(), above
        if index < last:
            outgoing[index + 1], incoming[index + 1] = x[:, :, -1:].contiguous(), below
        exchange(self.group, "borders", outgoing, incoming, number=next(self._numbers)).wait()
        return torch.cat((above, x, below), dim=2)

    def everywhere(self, x: Tensor) -> Tensor:
        """The pixels of all bands on every rank that has some: x [B, h·W, C] to [B, H·W, C]. One message to each."""
        batch, pixels, channels = x.shape
        width = pixels // self.sizes[self.group.index]
        own = x.contiguous()
        boxes = [
            own if peer == self.group.index else own.new_empty(batch, self.sizes[peer] * width, channels)
            for peer in range(self._holders)
        ]
        peers = [peer for peer in range(self._holders) if peer != self.group.index]
        exchange(
            self.group,
            "pixels",
            dict.fromkeys(peers, own),
            {peer: boxes[peer] for peer in peers},
            number=next(self._numbers),
        ).wait()
        return torch.cat(boxes, dim=1)

    def collect(self, mine: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """On the first rank of the group what every rank has, flat, by rank; sizes[i] elements of rank i, 0 allowed.

        Elsewhere nothing. One message from each.
        """
        if self.group.index:
            exchange(self.group, "collect", {0: mine.contiguous()}, {}, number=NUMBERS - 2).wait()
            return []
        boxes = {peer: mine.new_empty(sizes[peer]) for peer in range(1, self.group.size)}
        exchange(self.group, "collect", {}, boxes, number=NUMBERS - 2).wait()
        return [mine.reshape(-1), *boxes.values()]
