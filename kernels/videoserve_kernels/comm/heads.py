"""Which heads each rank attends: dealt out like the tokens, a pure function."""

from dataclasses import dataclass

from videoserve_kernels.comm.split import split


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Which heads each rank attends in each of the pieces of the exchange, in units of one key head.

    `sizes[rank][piece]` are key heads; each comes with `shared` query heads.
    """

    sizes: tuple[tuple[int, ...], ...]
    shared: int

    @staticmethod
    def of(query_heads: int, key_heads: int, ranks: int, pieces: int) -> "Heads":
        """ValueError when the query heads are no multiple of the key heads, or a rank has fewer heads than pieces."""
        if query_heads % key_heads:
            raise ValueError(f"{query_heads} query heads cannot share {key_heads} key heads: a multiple is allowed.")
        owned = split(key_heads, ranks)
        if pieces > max(owned):
            raise ValueError(
                f"{pieces} head groups are too many: {key_heads} key heads over {ranks} ranks allow 1 to {max(owned)}."
            )
        return Heads(sizes=tuple(split(heads, pieces) for heads in owned), shared=query_heads // key_heads)

    def of_piece(self, piece: int) -> list[int]:
        """The key heads of every rank in one piece."""
        return [sizes[piece] for sizes in self.sizes]
