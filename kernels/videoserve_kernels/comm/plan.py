"""How the ranks share the work of one generation: decided before the first step, the same on every rank."""

from dataclasses import dataclass, fields

from videoserve_kernels.comm.wire import codec_named

AXES = ("cfg", "ring", "ulysses", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """The extent of each axis of the mesh and how attention travels on it. The default is one rank.

    `cfg` 2 gives each branch of classifier-free guidance ranks of its own. `ring` and `ulysses` split the sequence,
    `tensor` the weights. `head_groups` pieces of the heads are exchanged while others are attended; `codec` is what
    attention's tensors travel as; `staged` sends to one rank at a time instead of to all of them at once.
    """

    cfg: int = 1
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    head_groups: int = 1
    codec: str = "none"
    staged: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and value < 1:
                raise ValueError(f"{field.name} is {value}; 1 or more is allowed.")
        if self.cfg > 2:
            raise ValueError(f"cfg is {self.cfg}; guidance has two branches, so 1 or 2 is allowed.")
        codec_named(self.codec)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of AXES."""
        return self.cfg, self.ring, self.ulysses, self.tensor

    @property
    def ranks(self) -> int:
        return self.cfg * self.ring * self.ulysses * self.tensor

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank stands on AXES. The last axis is the innermost: neighbouring ranks differ by it first."""
        place = []
        for extent in reversed(self.extents):
            rank, coordinate = divmod(rank, extent)
            place.append(coordinate)
        return tuple(reversed(place))

    def members(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group along the axes: those that stand alike on all others, in ascending order."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            place = self.coordinates(rank)
            others = tuple(at for axis, at in zip(AXES, place, strict=True) if axis not in axes)
            groups.setdefault(others, []).append(rank)
        return tuple(tuple(ranks) for ranks in groups.values())
