"""From the layout of a prompt to that of answers: what each rank left in rings for its own tokens comes to all."""

from collections.abc import Sequence

import torch

from videoserve.text.dealt import Dealt
from videoserve.text.models.deepseek_v4_pool import V4Pool
from videoserve.text.models.deepseek_v4_shape import Kind
from videoserve.text.models.deepseek_v4_step import Step


def even_out(pool: V4Pool, kinds: Sequence[Kind], step: Step) -> None:
    """Makes the pools of all ranks equal; one exchange for all layers of a kind.

    Windows and entries are everywhere already, since attention needed them. Rows of tokens whose entries are not made
    yet are not: a few a sequence, whatever the length of the batch.
    """
    group = step.tokens.group
    if group.size == 1:
        return
    for kind, entries in step.entries.items():
        rings = [layer.rows.flatten(0, 1) for layer, of in zip(pool.layers, kinds, strict=True) if of == kind
                 if layer.rows is not None]  # fmt: skip
        left = Dealt.of(step.tokens.owner[entries.whole.fresh.cpu()], group, step.rows.device)
        mine = torch.cat([ring[entries.reach.places] for ring in rings], dim=1)
        (every,) = left.gather(mine).wait()
        for ring, rows in zip(rings, every.chunk(len(rings), dim=1), strict=True):
            ring[entries.whole.places] = rows
