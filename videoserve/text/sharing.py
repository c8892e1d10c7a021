"""How the ranks of a chat worker share a model: what each of them holds of it, and how they compute a batch."""

from dataclasses import dataclass
from typing import Literal

from videoserve_kernels.comm.exchange import Group
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.split import slices, split

# Of a batch: each rank computes some of the heads of all tokens, or all heads of some of the tokens.
Layout = Literal["heads", "tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`mesh` has the ranks on its tensor axis. `experts` are held by all ranks, each with some of their channels
    ("width"), or each by one of them ("whole").

    Sums of up to `at_once_bytes` are made in one exchange. `overlaps`: messages travel while something is computed.
    """

    mesh: Mesh
    experts: Literal["width", "whole"] = "width"
    at_once_bytes: int = 0
    overlaps: bool = True

    @classmethod
    def alone(cls) -> "Sharing":
        """One rank that has everything."""
        return cls(mesh=Mesh(ParallelPlan()))

    @property
    def everybody(self) -> Group:
        return self.mesh.tensor

    def tokens_group(self, layout: Layout) -> Group:
        """Among whom the tokens of a batch are dealt out; this rank alone where it computes all of them."""
        return self.mesh.tensor if layout == "tokens" else self.mesh.sequence

    def heads_group(self, layout: Layout) -> Group:
        """Among whom the heads of a token are dealt out."""
        return self.mesh.tensor if layout == "heads" else self.mesh.sequence

    def share(self, length: int) -> slice:
        """Which of so many heads, channels or experts are this rank's."""
        return slices(split(length, self.everybody.size))[self.everybody.index]
