"""Adapters of the Llama family: changes of a layer's seven projections, as changes of the matrices that we keep."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from videoserve.text.adapted import Adapted, Place
from videoserve.text.shape import Shape
from videoserve.text.sharing import Sharing
from videoserve_lora.prepared import room
from videoserve_lora.slots import Slot, Slots

# Our matrices, and which of transformers' modules stand in each, one below the other.
MATRICES = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
# Their outputs are channels of heads, which transformers has in halves and we in neighbours.
TURNED = ("self_attn.q_proj", "self_attn.k_proj")


def adapted(slots: Slots, shape: Shape, sharing: Sharing, *, device: torch.device, dtype: torch.dtype) -> Adapted:
    """What `slots`, under transformers' names, add to a rank's share of the matrices.

    ValueError, a sentence, for what is for another model.
    """
    if slots.parameters:
        raise ValueError(f"The adapter changes {slots.parameters[0]} otherwise than by low rank.")
    left = set(slots.modules)
    kept = shares(shape, sharing)
    made = {}
    for layer in range(shape.layers):
        for matrix, modules in MATRICES.items():
            names = [f"model.layers.{layer}.{module}" for module in modules]
            if not left.isdisjoint(names):
                found = {
                    module: _own(slots.slot(name), module, shape, kept[module])
                    for module, name in zip(modules, names, strict=True)
                    if name in left
                }
                outputs = [len(range(*kept[module][0].indices(sizes(shape)[module][0]))) for module in modules]
                a, b = _together(modules, outputs, found, whole=device.type == "cuda")
                made[Place(layer, matrix)] = Slot(a=a.to(device, dtype), b=b.to(device, dtype))
                left.difference_update(names)
    if left:
        raise ValueError(f"The adapter is for another model: this one has no {min(left)}.")
    return Adapted(made)


def sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each module."""
    inner, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "self_attn.q_proj": (inner, shape.width),
        "self_attn.k_proj": (keys, shape.width),
        "self_attn.v_proj": (keys, shape.width),
        "self_attn.o_proj": (shape.width, inner),
        "mlp.gate_proj": (shape.hidden, shape.width),
        "mlp.up_proj": (shape.hidden, shape.width),
        "mlp.down_proj": (shape.width, shape.hidden),
    }


def shares(shape: Shape, sharing: Sharing) -> dict[str, tuple[slice, slice]]:
    """The outputs and inputs of each module that a rank has."""
    heads, channels = sharing.share(shape.kv_heads), sharing.share(shape.hidden)
    own = slice(heads.start * shape.head_dim, heads.stop * shape.head_dim)
    asking = slice(own.start * shape.group, own.stop * shape.group)
    everything = slice(None)
    return {
        "self_attn.q_proj": (asking, everything),
        "self_attn.k_proj": (own, everything),
        "self_attn.v_proj": (own, everything),
        "self_attn.o_proj": (everything, asking),
        "mlp.gate_proj": (channels, everything),
        "mlp.up_proj": (channels, everything),
        "mlp.down_proj": (everything, channels),
    }


def _own(slot: Slot, module: str, shape: Shape, kept: tuple[slice, slice]) -> Slot:
    """What a rank has of a module's slot."""
    outputs, inputs = sizes(shape)[module]
    if (slot.b.shape[0], slot.a.shape[1]) != (outputs, inputs):
        raise ValueError(f"The adapter is for another model: {module} is ({outputs}, {inputs}) in this one.")
    b = _turned(slot.b, shape.head_dim) if module in TURNED else slot.b
    return Slot(a=slot.a[:, kept[1]], b=b[kept[0]])


def _together(
    modules: Sequence[str], outputs: Sequence[int], found: Mapping[str, Slot], *, whole: bool
) -> tuple[Tensor, Tensor]:
    """A and B of modules that are one matrix here: A one below the other, each B in its own rows and columns.

    `whole`: filled up to one of the few ranks that a card's kernels are built for.
    """
    rank = sum(len(slot.a) for slot in found.values())
    held = room(rank) if whole else rank
    inputs = next(iter(found.values())).a.shape[1]
    a, b = torch.zeros(held, inputs), torch.zeros(sum(outputs), held)
    row = column = 0
    for module, size in zip(modules, outputs, strict=True):
        if module in found:
            slot = found[module]
            ranks = slice(column, column + len(slot.a))
            a[ranks] = slot.a
            b[row : row + size, ranks] = slot.b
            column = ranks.stop
        row += size
    return a, b


def _turned(b: Tensor, head_dim: int) -> Tensor:
    """Rows that are channels of heads, from halves to neighbours."""
    return torch.unflatten(b, 0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
