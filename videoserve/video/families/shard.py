"""The tokens of a video that one rank holds, and what goes with them by their place in the whole video."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from videoserve_kernels.comm.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """`here` of the `length` tokens of a video, S of them; all of them on a mesh of one rank.

    `turns` complex64 [S, D/2] is their part of the rotary table. `steps` int64 [G] says which timestep of a job each of
    G equal runs of them has, as the doors of the modulation take it for frames.
    """

    mesh: Mesh
    length: int
    here: slice
    turns: Tensor
    steps: Tensor


def timestep_runs(here: slice, clean: int) -> list[int]:
    """The timestep of each of the longest equal runs that tokens here.start to here.stop fall into.

    0 for the first `clean` tokens of the video and 1 for those after them; all 0 where clean is 0. Long runs, because
    the modulation of a run is a row of a table: with runs of one token it would be as large as the activations.
    """
    before = max(0, min(clean, here.stop) - here.start)
    after = here.stop - here.start - before
    if not clean or not after or not before:
        return [int(bool(clean) and not before)]
    run = gcd(before, after)
    return [0] * (before // run) + [1] * (after // run)


def steps_of(here: slice, clean: int, device: torch.device) -> Tensor:
    """timestep_runs as the doors take it."""
    return torch.tensor(timestep_runs(here, clean), dtype=torch.int64, device=device)
