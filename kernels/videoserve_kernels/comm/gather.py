"""What the ranks put together at the end of a step: the shards of the sequence and the branches of guidance."""

import torch
from torch import Tensor

from videoserve_kernels.comm.collectives import all_gather
from videoserve_kernels.comm.mesh import Mesh


def gather_sequence(x: Tensor, mesh: Mesh, *, length: int) -> Tensor:
    """All `length` tokens, on every rank, from the shards [B, S, ...] of the sequence group; [B, length, ...]."""
    if mesh.sequence.size == 1:
        return x
    rest = x.shape[:1] + x.shape[2:]
    counts = [tokens * rest.numel() for tokens in mesh.lengths(length)]
    pieces = all_gather(x, counts, mesh.sequence).wait()
    return torch.cat(
        [
            piece.view(x.shape[0], tokens, *x.shape[2:])
            for piece, tokens in zip(pieces, mesh.lengths(length), strict=True)
        ],
        dim=1,
    )


def branch_rows(rows: int, mesh: Mesh) -> slice:
    """Which of `rows` rows this rank computes: rows of both branches come in turn, cond and uncond of each job.

    ValueError when the branches cannot be told apart.
    """
    if rows % mesh.cfg.size:
        raise ValueError(f"{rows} rows cannot be shared by {mesh.cfg.size} branches: a multiple is allowed.")
    return slice(mesh.cfg.index, rows, mesh.cfg.size)


def gather_branches(x: Tensor, mesh: Mesh) -> Tensor:
    """The rows of both branches, in turn, on every rank, out of those of this rank's branch.

    x [J, ...] is what branch_rows left; returns [J · cfg, ...]. One message a rank, once a step: guidance itself is
    then computed everywhere, from the same bits. With cfg 1 it returns x, which has both branches already.
    """
    if mesh.cfg.size == 1:
        return x
    pieces = all_gather(x, [x.numel()] * mesh.cfg.size, mesh.cfg).wait()
    return torch.stack([piece.view(x.shape) for piece in pieces], dim=1).flatten(0, 1)
