"""What one forward of a text model gets: tokens of any sequences, any number of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from videoserve.text.adapted import Adapted, Group
from videoserve_kernels.paged_runs import Runs, runs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Consecutive tokens of one sequence, the first at `start`, its block table, ring and adapters; `logits`: of the
    last one."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    logits: bool
    ring: int = 0
    adapted: Adapted | None = None


class Span(NamedTuple):
    """`length` tokens of one sequence from position `start` on, and its ring."""

    start: int
    length: int
    ring: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """tokens, rows and positions [T], tables [B, W]; `wanted` [L] are the tokens whose logits are needed.

    `slots` [T] is where the keys of each token lie in a row of all blocks. `spans` has one for each row of the tables,
    whose tokens stand in this order. `groups` are those tokens that have adapters.
    """

    tokens: Tensor
    rows: Tensor
    positions: Tensor
    tables: Tensor
    wanted: Tensor
    slots: Tensor
    runs: Runs
    spans: tuple[Span, ...]
    groups: tuple[Group, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Part], block: int, device: torch.device) -> "Batch":
        tokens: list[int] = []
        rows: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for row, part in enumerate(parts):
            tokens += part.tokens
            rows += [row] * len(part.tokens)
            positions += range(part.start, part.start + len(part.tokens))
            if part.logits:
                wanted.append(len(tokens) - 1)
        width = max(len(part.blocks) for part in parts)
        tables = [[*part.blocks, *[0] * (width - len(part.blocks))] for part in parts]
        slots = [tables[row][at // block] * block + at % block for row, at in zip(rows, positions, strict=True)]
        return cls(
            tokens=torch.tensor(tokens, device=device),
            rows=torch.tensor(rows, dtype=torch.int32, device=device),
            positions=torch.tensor(positions, dtype=torch.int32, device=device),
            tables=torch.tensor(tables, dtype=torch.int32, device=device),
            wanted=torch.tensor(wanted, dtype=torch.int64, device=device),
            slots=torch.tensor(slots, dtype=torch.int64, device=device),
            runs=runs_of(tables, rows, positions, block, device),
            spans=tuple(Span(part.start, len(part.tokens), part.ring) for part in parts),
            groups=groups_of(parts, device),
        )


def groups_of(parts: Sequence[Part], device: torch.device) -> tuple[Group, ...]:
    """The tokens of each set of adapters; those without any are in none."""
    found: dict[int, tuple[Adapted, list[int]]] = {}
    total = 0
    for part in parts:
        if part.adapted is not None:
            _, rows = found.setdefault(id(part.adapted), (part.adapted, []))
            rows += range(total, total + len(part.tokens))
        total += len(part.tokens)
    return tuple(
        Group(adapted, None if len(rows) == total else torch.tensor(rows, device=device))
        for adapted, rows in found.values()
    )
