"""What a plan's step takes on a box: its exchanges and attention, in the order in which the code issues them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.simulator import Program, seconds
from videoserve_kernels.comm.volume import Layer
from videoserve_kernels.comm.wire import codec_named

Done = Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer on one card: `layers` of `layer`, and the seconds of one layer and branch."""

    layer: Layer
    layers: int
    branches: int
    attention_s: float
    other_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step on one card."""
        return self.branches * self.layers * (self.attention_s + self.other_s)


def step_seconds(model: Model, plan: ParallelPlan, box: Box) -> float:
    """Seconds of one step with this plan: branches that have no ranks of their own run one after the other.

    Layers are taken as alike and one after the other. ValueError when the plan does not fit the box.
    """
    if plan.ranks != box.ranks:
        raise ValueError(f"The plan has {plan.ranks} ranks and the box {box.ranks} cards: the same number is allowed.")
    return model.branches / plan.cfg * model.layers * seconds(Forecast(model, plan).layer(), box)


class Forecast:
    """The program of one layer."""

    def __init__(self, model: Model, plan: ParallelPlan) -> None:
        self._model = model
        self._plan = plan
        self._program = Program()
        self._pieces = plan.head_groups
        shards = plan.ring * plan.ulysses
        layer = model.layer
        row = codec_named(plan.codec).row_bytes(layer.channels, layer.itemsize)
        # One rank's queries, and its keys with its values, of all heads.
        self._queries = layer.batch * layer.length * layer.query_heads * row / shards
        self._keys = 2 * self._queries * layer.key_heads / layer.query_heads
        self._sending: dict[int, frozenset[int]] = {rank: frozenset() for rank in range(plan.ranks)}

    def layer(self) -> Program:
        everyone = range(self._plan.ranks)
        start = {rank: frozenset[int]() for rank in everyone}
        part = self._plan.ulysses * self._pieces
        coming = self._among_ulysses((self._queries + self._keys) / part, start)
        going: dict[int, frozenset[int]] = start
        for piece in range(self._pieces):
            here = coming
            if piece + 1 < self._pieces:
                coming = self._among_ulysses((self._queries + self._keys) / part, here)
            back = self._among_ulysses(self._queries / part, self._attend(here))
            going = {rank: going[rank] | back[rank] for rank in everyone}
        for rank in everyone:
            self._program.work(rank, self._model.other_s / (self._plan.ring * self._plan.ulysses), going[rank])
        return self._program

    def _attend(self, here: Done) -> dict[int, frozenset[int]]:
        """The turns of the ring for one piece: the next block is under way while one is attended."""
        ring, parts = self._plan.ring, self._plan.ring * self._plan.ulysses * self._pieces
        held = dict(here)
        done: dict[int, frozenset[int]] = dict(here)
        for turn in range(ring):
            arriving: dict[int, set[int]] = {rank: set() for rank in held}
            if turn < ring - 1:
                for ranks in self._plan.members("ring"):
                    for place, rank in enumerate(ranks):
                        after = ranks[(place + 1) % ring]
                        needs = held[rank] | held[after] | done[rank] | done[after]
                        sent = self._program.stream(rank, after, self._keys / self._pieces, needs)
                        arriving[after].add(sent)
                        arriving[rank].add(sent)
            attended = {
                rank: self._program.work(rank, self._model.attention_s / parts / ring, held[rank]) for rank in held
            }
            done = {rank: frozenset({attended[rank]}) for rank in held}
            held = {rank: frozenset(arriving[rank]) | done[rank] for rank in held}
        return done

    def _among_ulysses(self, size: float, ready: Done) -> dict[int, frozenset[int]]:
        """`size` bytes from each to each; who is done after which streams."""
        done = dict(ready)
        for ranks in self._plan.members("ulysses") if self._plan.ulysses > 1 else ():
            done.update(self._staged(ranks, size, ready) if self._plan.staged else self._at_once(ranks, size, ready))
        return done

    def _at_once(self, ranks: Sequence[int], size: float, ready: Done) -> dict[int, frozenset[int]]:
        streams = {
            (source, target): self._program.stream(source, target, size, ready[source] | ready[target])
            for source in ranks
            for target in ranks
            if source != target
        }
        return {rank: frozenset(number for ends, number in streams.items() if rank in ends) for rank in ranks}

    def _staged(self, ranks: Sequence[int], size: float, ready: Done) -> dict[int, frozenset[int]]:
        """size - 1 shifts, each when both ends are through with the one before, of this exchange or an earlier one."""
        count = len(ranks)
        before = {rank: ready[rank] | self._sending[rank] for rank in ranks}
        for distance in range(1, count):
            stage: dict[int, set[int]] = {rank: set() for rank in ranks}
            for place, source in enumerate(ranks):
                target = ranks[(place + distance) % count]
                number = self._program.stream(source, target, size, before[source] | before[target])
                stage[source].add(number)
                stage[target].add(number)
            before = {rank: frozenset(numbers) for rank, numbers in stage.items()}
        self._sending.update(before)
        return before
