"""The meshes of an engine, and how a unit of work is written down for the ranks that share it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from videoserve.video.families.context import TextContext
from videoserve.video.run import Encoded
from videoserve_cache.steps.cache import StepCache
from videoserve_kernels.comm.collectives import broadcast
from videoserve_kernels.comm.exchange import Handle
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan

# Beyond twice the time limit of a collective: the ranks notice a loss one after the other.
GRACE_S = 5.0
# What a rank says of a failure that needs no sentence: an allocation was refused, or only another rank failed.
MEMORY, PEER = "memory", "peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """How the ranks share a job with guidance and one without: the second has one branch, so cfg is 1."""

    guided: ParallelPlan
    plain: ParallelPlan

    def __post_init__(self) -> None:
        if self.guided.ranks != self.plain.ranks or self.plain.cfg != 1:
            raise ValueError(
                f"The plans {self.guided.name} and {self.plain.name} do not go together: as many ranks for jobs "
                "without guidance, and one branch, is allowed."
            )
        if self.guided.tensor > 1 or self.plain.tensor > 1:
            raise ValueError(f"The plan {self.guided.name} splits the weights: a Wan model allows cfg, r and u only.")

    @staticmethod
    def of(guided: ParallelPlan) -> "Plans":
        """A plan for guided jobs as it is; for the others the ranks of both branches split the sequence."""
        if guided.cfg == 1:
            return Plans(guided=guided, plain=guided)
        plain = replace(guided, cfg=1, ulysses=guided.ulysses * guided.cfg, head_groups=1)
        return Plans(guided=guided, plain=plain)

    @staticmethod
    def named(name: str, ranks: int, codec: str) -> "Plans":
        """The plans that settings stand for; of "auto" the branches apart where that can be, and Ulysses."""
        cfg = 2 if ranks % 2 == 0 else 1
        plan = ParallelPlan(cfg=cfg, ulysses=ranks // cfg) if name == "auto" else ParallelPlan.parse(name)
        return Plans.of(plan if codec == "none" else replace(plan, codec=codec))


class Meshes:
    """The meshes of the plans; one for both where they are alike."""

    def __init__(self, plans: Plans, device: torch.device, time_limit_s: float) -> None:
        """Every rank makes them at the same place."""
        self.plans = plans
        self.guided = Mesh(plans.guided, device=device, time_limit_s=time_limit_s)
        self.plain = self.guided
        if plans.plain != plans.guided:
            self.plain = Mesh(plans.plain, device=device, time_limit_s=time_limit_s)

    def of(self, guided: bool) -> Mesh:
        return self.guided if guided else self.plain

    def renew(self) -> None:
        """New process groups in place of broken ones; every rank at the same place."""
        for mesh in self._each():
            mesh.renew()

    def close(self) -> None:
        for mesh in self._each():
            mesh.close()

    def _each(self) -> list[Mesh]:
        return [self.guided] if self.plain is self.guided else [self.guided, self.plain]


@dataclass(slots=True, eq=False)
class Guest:
    """What a rank that does not lead keeps of a job: what a forward needs.

    Nothing of it changes with the steps, but for a cache that decides inside the forward.
    """

    encoded: Encoded | None
    steps: StepCache | None = None
    contexts: dict[int, TextContext] = field(default_factory=dict)


def described(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """[shape, dtype] of each, as JSON holds them."""
    return [[list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for tensor in tensors]


def send(tensors: Sequence[Tensor], mesh: Mesh) -> list[Handle[Tensor]]:
    """Starts on the way from rank 0 to all others, one message each."""
    return [broadcast(tensor.contiguous(), mesh.world) for tensor in tensors]


def receive(about: Sequence[Sequence[Any]], mesh: Mesh) -> list[Tensor]:
    """What `send` sends, from its description."""
    boxes = [torch.empty(shape, dtype=getattr(torch, dtype), device=mesh.device) for shape, dtype in about]
    return [broadcast(box, mesh.world).wait() for box in boxes]
