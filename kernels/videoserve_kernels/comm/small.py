"""Sums over all ranks by the size of what is summed: at once where messages are short, else in two halves."""

from torch import Tensor

from videoserve_kernels.comm.collectives import all_reduce, in_order, traded
from videoserve_kernels.comm.exchange import Group, Handle


def all_reduce_at_once(x: Tensor, group: Group) -> Handle[Tensor]:
    """The sum over all ranks in x's shape and dtype, the same bits as all_reduce's, in one exchange instead of two.

    Everybody sends all of x to everybody: size / 2 times the bytes, and half of the waits.
    """
    own = x.contiguous()
    table = [[x.numel()] * group.size] * group.size
    pieces = traded("all_reduce_at_once", [own] * group.size, table, group)
    return pieces.then(lambda found: in_order(found, x.dtype).view(x.shape))


def all_reduce_by_size(x: Tensor, group: Group, *, at_once_bytes: int) -> Handle[Tensor]:
    """The sum over all ranks: at once up to so many bytes, as calibration has found to be faster there."""
    if group.size == 1:
        return Handle(lambda: x)
    if x.numel() * x.element_size() <= at_once_bytes:
        return all_reduce_at_once(x, group)
    return all_reduce(x, group)
