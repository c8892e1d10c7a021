"""Which kind of change the tensors of a module make, and what is missing or too much of it."""

import math
from collections.abc import Iterable, Mapping

from videoserve_lora.change import Change
from videoserve_lora.hadamard import Hadamard
from videoserve_lora.kronecker import Kronecker
from videoserve_lora.low_rank import LowRank
from videoserve_lora.stored import Stored

HALVES = {
    "a": "lora_A (down)",
    "b": "lora_B (up)",
}


def change_of(tensors: Mapping[str, Stored], alpha: float | None) -> Change:
    """The change that a complete set of tensors makes; alpha is dropped where it means nothing."""
    if "a" in tensors:
        return LowRank(tensors=tensors, alpha=alpha)
    if "hada_w1_a" in tensors:
        return Hadamard(tensors=tensors, alpha=alpha)
    change = Kronecker(tensors=tensors, alpha=alpha)
    return Kronecker(tensors=tensors, alpha=None) if change.full else change


def incomplete(roles: Iterable[str]) -> str | None:
    """Why these roles make no change; None when they do."""
    there = set(roles)
    kinds = {role.partition("_")[0] if role.startswith(("lokr", "hada")) else "lora" for role in there}
    if len(kinds) > 1:
        return "belong to a module that is changed twice"
    if kinds == {"lokr"}:
        return next(filter(None, (half_of(there, name) for name in ("lokr_w1", "lokr_w2"))), None)
    whole = Hadamard.roles if kinds == {"hada"} else LowRank.roles
    missing = sorted(whole - there)
    return f"stand without their {' and '.join(HALVES.get(role, role) for role in missing)}" if missing else None


def half_of(there: set[str], name: str) -> str | None:
    product = {f"{name}_a", f"{name}_b"} & there
    if name in there:
        return "belong to a module that is changed twice" if product else None
    missing = sorted({f"{name}_a", f"{name}_b"} - there)
    return f"stand without their {' and '.join(missing)}" if missing else None


def misshapen(tensors: Mapping[str, Stored], weight: tuple[int, ...]) -> str | None:
    """Why the tensors cannot change a weight of this shape, [O, I] or [O, I, and the window]; None when they can."""
    shapes = {role: tensor.shape for role, tensor in tensors.items()}
    if "a" in shapes:
        return low_rank_misfit(shapes, weight)
    if any(len(shape) != 2 for shape in (weight, *shapes.values())):
        return "are no matrices, or not for one"
    for name in ("lokr_w1", "lokr_w2", "hada_w1", "hada_w2"):
        a, b = shapes.get(f"{name}_a"), shapes.get(f"{name}_b")
        if a and b and a[1] != b[0]:
            return "do not multiply with each other"
    if "hada_w1_a" in shapes:
        one, other = ((shapes[f"{name}_a"][0], shapes[f"{name}_b"][1]) for name in ("hada_w1", "hada_w2"))
        if one != other:
            return "do not multiply with each other"
    change = change_of(tensors, None).shape
    return None if change == weight else f"make a change of {list(change)} for a weight of {list(weight)}"


def windowed(tensors: Mapping[str, Stored], weight: tuple[int, ...]) -> dict[str, Stored]:
    """Of a convolution, A and B with the axes of its window, as other programs want them; trainers write both."""
    if "a" not in tensors or len(weight) == 2:
        return dict(tensors)
    rank = tensors["a"].shape[0]
    a = tensors["a"].shaped((rank, *weight[1:]))
    b = tensors["b"].shaped((weight[0], rank) + (1,) * (len(weight) - 2))
    return {**tensors, "a": a, "b": b}


def low_rank_misfit(shapes: Mapping[str, tuple[int, ...]], weight: tuple[int, ...]) -> str | None:
    a, b = shapes["a"], shapes["b"]
    rank = a[0] if a else 0
    fits_a = a in ((rank, *weight[1:]), (rank, math.prod(weight[1:])))
    fits_b = b in ((weight[0], rank), (weight[0], rank) + (1,) * (len(weight) - 2))
    fits_bias = shapes.get("b_bias", (weight[0],)) == (weight[0],)
    if fits_a and fits_b and fits_bias:
        return None
    told = " and ".join(str(list(shape)) for shape in (a, b))
    return f"are {told} for a weight of {list(weight)}"
