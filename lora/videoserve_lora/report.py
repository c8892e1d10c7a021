"""What is told of an accepted adapter."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from videoserve_lora.adapter import Adapter, Part
from videoserve_lora.names import BLOCK
from videoserve_lora.refused import Refused
from videoserve_lora.target import Target

# A change this large by its weight is no style: it was trained for another model, or its factor is wrong.
SUSPICIOUS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReport:
    """One part of an adapter. `ranks` counts modules by rank; `alpha` and `factor` are the least and the greatest.

    `dense` are the modules whose change has no exact low-rank factors; `ratio` is |change| / |weight| by kind of
    module, where the model's norms are known.
    """

    modules: int
    of_modules: int
    kinds: Mapping[str, int]
    ranks: Mapping[int, int]
    alpha: tuple[float, float] | None
    factor: tuple[float, float] | None
    deltas: int
    dense: tuple[str, ...]
    ratio: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found in a file. `unused` are keys left out, as their sender allowed; `notes` are sentences."""

    layout: str
    dtypes: Mapping[str, int]
    parts: Mapping[str, PartReport]
    unused: tuple[str, ...]
    notes: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return told


def report(
    adapter: Adapter, target: Target, layout: str, unused: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> Report:
    """Refused for a change that is not finite."""
    parts = {str(name): part_report(part, target) for name, part in adapter.parts.items()}
    tensors = [
        stored
        for part in adapter.parts.values()
        for stored in (*part.deltas.values(), *(t for change in part.changes.values() for t in change.tensors.values()))
    ]
    return Report(
        layout=layout,
        dtypes=dict(sorted(Counter(stored.entry.dtype.name for stored in tensors).items())),
        parts=parts,
        unused=tuple(sorted(key for keys in unused.values() for key in keys)),
        notes=(*notes, *large(parts)),
    )


def large(parts: Mapping[str, PartReport]) -> list[str]:
    """A sentence for each kind of module that is changed more than is usual."""
    return [
        f"The change of {kind} ({name}) is {ratio:.2g} of the model's own weights; above {SUSPICIOUS} is unusual."
        for name, part in parts.items()
        for kind, ratio in part.ratio.items()
        if ratio > SUSPICIOUS
    ]


def part_report(part: Part, target: Target) -> PartReport:
    changes = part.changes.values()
    alphas = [change.alpha for change in changes if change.alpha is not None]
    factors = [change.factor for change in changes]
    return PartReport(
        modules=len(part.changes),
        of_modules=len(target.matrices),
        kinds=dict(Counter(change.kind for change in changes)),
        ranks=dict(sorted(Counter(change.rank for change in changes).items())),
        alpha=(min(alphas), max(alphas)) if alphas else None,
        factor=(min(factors), max(factors)) if factors else None,
        deltas=len(part.deltas),
        dense=tuple(sorted(place for place, change in part.changes.items() if change.low_rank is None)),
        ratio=ratios(part, target),
    )


def ratios(part: Part, target: Target) -> dict[str, float]:
    """|change| / |weight| over all modules of a kind; nothing where the model's norms are not known."""
    sums: dict[str, tuple[float, float]] = {}
    for place, change in part.changes.items():
        known = target.norms.get(f"{place}.weight")
        if known is not None:
            changed, weights = sums.get(kind_of(place), (0.0, 0.0))
            norm = change.norm()
            if not math.isfinite(norm):
                raise Refused(f"The change of {place} is not finite.")
            sums[kind_of(place)] = changed + norm**2, weights + known**2
    return {kind: math.sqrt(changed / weights) for kind, (changed, weights) in sorted(sums.items())}


def kind_of(place: str) -> str:
    """The part of a block that a module is in: "attn1", "attn2", "ffn"; "outside" for all else."""
    inside = BLOCK.fullmatch(place)
    return inside[2].partition(".")[0] if inside else "outside"
