"""Attention over the whole mesh: Ulysses around a ring. With an extent of one each of the two is nothing."""

from torch import Tensor

from videoserve_kernels.comm.heads import Heads
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.ring import Kernel, attend_whole, ring_attention
from videoserve_kernels.comm.ulysses import Trade, ulysses_attention
from videoserve_kernels.comm.wire import codec_named


def attention(q: Tensor, k: Tensor, v: Tensor, mesh: Mesh, *, length: int, kernel: Kernel | None = None) -> Tensor:
    """Self-attention of tokens that are spread over the sequence group of the mesh.

    q [B, S, N, D], k and v [B, S, M, D] are this rank's tokens, mesh.shard(length) of the `length` there are, 0
    allowed; rotary positions are those within the whole. Returns [B, S, N, D] in q's dtype. How it travels is the
    plan's: ring, ulysses, head_groups, codec, staged. `kernel` takes the place of the attention door: (q, k, v) of
    whatever tokens and heads meet here to (out, log-sum-exp). ValueError when the shard has another length, or the
    heads allow no such plan; CommunicationError when a peer is lost.
    """
    if mesh.plan.ranks == 1:
        return attend_whole(q, k, v, kernel)
    lengths = mesh.lengths(length)
    if q.shape[1] != lengths[mesh.sequence.index]:
        raise ValueError(
            f"Rank {mesh.sequence.index} of {mesh.sequence.size} holds {lengths[mesh.sequence.index]} of {length} "
            f"tokens, not {q.shape[1]}."
        )
    codec = codec_named(mesh.plan.codec)
    # The ranks of one Ulysses group are neighbours on the sequence: together they hold one block of the ring.
    row = mesh.ring.index * mesh.ulysses.size
    blocks = [sum(lengths[first : first + mesh.ulysses.size]) for first in range(0, len(lengths), mesh.ulysses.size)]
    trade = Trade(
        group=mesh.ulysses,
        codec=codec,
        heads=Heads.of(q.shape[2], k.shape[2], mesh.ulysses.size, mesh.plan.head_groups),
        lengths=lengths[row : row + mesh.ulysses.size],
        batch=q.shape[0],
        channels=q.shape[3],
        dtype=q.dtype,
    )

    def inner(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ring_attention(q, k, v, mesh.ring, blocks, codec, kernel=kernel)

    return ulysses_attention(q, k, v, trade, mesh.plan.head_groups, inner)
