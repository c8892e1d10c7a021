"""A weight matrix as it is multiplied with: in the model's dtype or in 8 bits a value."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import linear

from videoserve_kernels.dynamic_linear import dynamic_linear, int8_weight

# x [T, K] -> [T, N]
Matrix = Callable[[Tensor], Tensor]


def matrix(weight: Tensor, *, int8: bool) -> Matrix:
    """x Wᵀ for a weight [N, K]; with `int8` the weight is kept in 8 bits, one scale a channel."""
    if int8:
        small = int8_weight(weight)
        return lambda x: dynamic_linear(x, small)
    return lambda x: linear(x, weight)
