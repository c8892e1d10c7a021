"""A linear module to which adapters add: the weights of the base are never touched."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from videoserve_kernels.low_rank import add_low_rank
from videoserve_lora.slots import Slot

# A slot that adds more than this share to a module's own products is folded, where that loses nothing.
DEAR = 1 / 16


class LoraLinear(nn.Module):
    """Stands in a linear module's place: base(x), and (x Aᵀ) Bᵀ of the slot on top of it, where there is one.

    Any module will do that takes [..., I] and gives a new [..., O], one with weights of 8 bits as well. Without a slot
    its output is the base's, not one operation more. In a small float32 module a slot is dear: `folded` is then a copy
    of the weight with B A added, of which one product gives the same within rounding.
    """

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.slot: Slot | None = None
        self.folded: Tensor | None = None
        # Of `folded`, kept: a switch of adapters is to make nothing anew.
        self._copy: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """The base's own."""
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight

    @property
    def bias(self) -> Tensor | None:
        bias: Tensor | None = self.base.bias  # type: ignore[assignment]
        return bias

    @torch.no_grad()
    def hold(self, slot: Slot | None) -> None:
        """In place of what it held before; None: nothing. A slot is of the weight's device."""
        self.slot = slot
        self.folded = None
        if slot is not None and self._dear(slot):
            if self._copy is None:
                # Laid out as the weight is, which may be input by input.
                self._copy = torch.empty_like(self.weight)
            torch.addmm(self.weight.t(), slot.a.t(), slot.b.t(), out=self._copy.t())
            self.folded = self._copy

    def forward(self, x: Tensor) -> Tensor:
        if self.folded is not None:
            return functional.linear(x, self.folded, self.bias)
        y: Tensor = self.base(x)
        if self.slot is None:
            return y
        return add_low_rank(y, x.contiguous(), self.slot.a, self.slot.b)

    def _dear(self, slot: Slot) -> bool:
        """Whether the slot is worth folding: sums of fewer bits would lose it, and coded weights cannot take it."""
        if type(self.base) is not nn.Linear or self.weight.dtype is not torch.float32:
            return False
        return slot.a.numel() + slot.b.numel() > DEAR * self.weight.numel()
