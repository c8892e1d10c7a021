"""Puts adapters on a transformer and takes them off again, bit for bit."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from videoserve_lora.linear import LoraLinear
from videoserve_lora.prepared import Prepared
from videoserve_lora.slots import Slot


class Binder:
    """The adapters of one transformer. Its linear modules become LoraLinear at once, and stay that.

    Parameters that get a full delta (norms, biases, tables, convolutions) are written from copies of what they were,
    which are made at the first time and kept in host memory.
    """

    def __init__(self, module: nn.Module, kinds: tuple[type[nn.Module], ...] = (nn.Linear,)) -> None:
        """`kinds` of modules take slots."""
        self._parameters: Mapping[str, nn.Parameter] = dict(module.named_parameters())
        self.linears = {name: LoraLinear(child) for name, child in module.named_modules() if isinstance(child, kinds)}
        for name, linear in self.linears.items():
            module.set_submodule(name, linear)
        self._pristine: dict[str, Tensor] = {}
        self._slotted: list[str] = []
        self._changed: list[str] = []

    def places(self, dtype: torch.dtype) -> dict[str, torch.dtype]:
        """The modules that take a slot, with its type: their weight's, which a model may keep in more bits than the
        rest of it has; `dtype` where the weight is codes of 8 bits.
        """
        weights = {name: linear.weight for name, linear in self.linears.items()}
        return {name: weight.dtype if weight.itemsize > 1 else dtype for name, weight in weights.items()}

    @torch.no_grad()
    def bind(self, prepared: Prepared) -> None:
        """In place of what was bound before. ValueError, a sentence, when it does not fit: nothing is bound then."""
        self.reset()
        self._check(prepared)
        for name, delta in prepared.deltas.items():
            parameter = self._parameters[name]
            if name not in self._pristine:
                self._pristine[name] = parameter.detach().cpu().clone()
            # Noted first: what is half written is put back as well.
            self._changed.append(name)
            changed = self._pristine[name].float() + delta.reshape(parameter.shape)
            parameter.copy_(changed)
        # Last: a slot may be folded into the weight, which may have a full delta too.
        for place, slot in prepared.slots.items():
            self._slotted.append(place)
            linear = self.linears[place]
            linear.hold(moved(slot, linear.weight.device))

    @torch.no_grad()
    def reset(self) -> None:
        """Nothing is bound: every module and parameter is as it was made."""
        for place in self._slotted:
            self.linears[place].hold(None)
        for name in self._changed:
            self._parameters[name].copy_(self._pristine[name])
        self._slotted.clear()
        self._changed.clear()

    def _check(self, prepared: Prepared) -> None:
        for place, slot in prepared.slots.items():
            if place not in self.linears:
                raise ValueError(f"The adapter is for another model: this one has no {place}.")
            weight = self.linears[place].weight
            if (slot.b.shape[0], slot.a.shape[1]) != tuple(weight.shape):
                raise ValueError(f"The adapter is for another model: {place} is {tuple(weight.shape)} in this one.")
        for name, delta in prepared.deltas.items():
            if name not in self._parameters:
                raise ValueError(f"The adapter is for another model, or for whole weights: this one has no {name}.")
            if delta.numel() != self._parameters[name].numel():
                raise ValueError(f"The adapter is for another model: {name} has other dimensions in this one.")


def moved(slot: Slot, device: torch.device) -> Slot:
    """On a device; from pinned memory a card copies beside its work."""
    return Slot(a=slot.a.to(device, non_blocking=True), b=slot.b.to(device, non_blocking=True))
