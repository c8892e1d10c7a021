"""The emulated boxes, the model whose step is timed on them, and the schemes that are held against the simulator."""

from dataclasses import dataclass, replace

from _emulated_links import Rates

from videoserve_kernels.comm.forecast import Model
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.topology import Islands
from videoserve_kernels.comm.volume import Layer

# Bytes of one rank's queries in one branch: enough that a burst of the links is little beside them.
QUERIES = 2.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A box, and what the model has on it: branches of guidance, and seconds of attention a branch on every rank."""

    name: str
    rates: Rates
    branches: int = 2
    attention_s: float = 1.0

    def box(self, ranks: int, packets: float) -> Box:
        """The box as the simulator has it. `packets` are bytes on the wire for each byte of payload."""
        byte = 1e6 / 8 / packets
        flat = Box(ranks=ranks, card=self.rates.card * byte)
        return replace(flat, island=ranks // 2, trunk=self.rates.trunk * byte) if self.rates.trunk else flat

    def islands(self, ranks: int) -> Islands:
        """What a host's description would tell."""
        return (tuple(range(ranks // 2)), tuple(range(ranks // 2, ranks))) if self.rates.trunk else ()

    def model(self, ranks: int) -> Model:
        """One layer with the heads of Wan-14B."""
        length = int(QUERIES / (40 * 128 * 2)) * ranks
        layer = Layer(batch=1, length=length, query_heads=40, key_heads=40, channels=128, itemsize=2)
        attention_s = self.attention_s * ranks
        return Model(layer=layer, layers=1, branches=self.branches, attention_s=attention_s, other_s=0.0)

    def __str__(self) -> str:
        trunk = f", a trunk of {self.rates.trunk:g} between two islands" if self.rates.trunk else ", no islands"
        attention = f"{self.branches} x {self.attention_s:g} s of attention a rank"
        return f"{self.name}: cards at {self.rates.card:g} Mbit/s{trunk}; {attention}"


SCHEMES_ON = Case(name="two islands", rates=Rates(card=100, trunk=100))
BOXES = (
    Case(name="flat fast", rates=Rates(card=200), attention_s=2.0),
    Case(name="flat slow", rates=Rates(card=50)),
    Case(name="thin trunk", rates=Rates(card=100, trunk=50)),
    Case(name="unequal links", rates=Rates(card=200, trunk=40), branches=1),
)
SCHEMES = {
    "U8": ParallelPlan(ulysses=8, staged=False),
    "U8 staged": ParallelPlan(ulysses=8),
    "U8 head-pipelined": ParallelPlan(ulysses=8, head_groups=5),
    "Ring8": ParallelPlan(ring=8),
    "U4R2": ParallelPlan(ulysses=4, ring=2),
    "CFG2 x U4": ParallelPlan(cfg=2, ulysses=4),
    "CFG2 x U4 head-pipelined": ParallelPlan(cfg=2, ulysses=4, head_groups=5),
}
# The head-pipelined, and the same exchange where nothing overlaps.
PIPELINED = {"U8 head-pipelined": "U8 staged", "CFG2 x U4 head-pipelined": "CFG2 x U4"}


def each_rank_layer(model: Model, plan: ParallelPlan) -> Layer:
    """The layer as a rank has it: branches that have no ranks of their own are a batch."""
    return replace(model.layer, batch=model.layer.batch * model.branches // plan.cfg)


def hideable_s(exchange_s: float, attention_s: float, groups: int) -> float:
    """What head groups can hide of an exchange and an attention that otherwise follow each other.

    The best pipeline takes the longer of two. Where attention is long: all of it, the first group's way there and the
    last one's way back, together exchange / groups. Where the exchange is long: all of it, and of the last group's
    attention what the way back of the group before, a quarter of its exchange, does not cover.
    """
    bound_by_attention = attention_s + exchange_s / groups
    bound_by_exchange = exchange_s + max(0.0, (attention_s - exchange_s / 4) / groups)
    return exchange_s + attention_s - max(bound_by_attention, bound_by_exchange)
