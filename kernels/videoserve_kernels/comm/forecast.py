"""What a plan's step takes on a box: its exchanges and attention, in the order in which the code issues them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from videoserve_kernels.comm.codecs import row_bytes
from videoserve_kernels.comm.heads import Heads
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.simulator import Program, seconds
from videoserve_kernels.comm.split import split
from videoserve_kernels.comm.volume import Layer

Done = Mapping[int, frozenset[int]]
# Bytes from one place of a group to another.
Size = Callable[[int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer on one card: `layers` of `layer`, and the seconds of one layer and branch.

    `latent_bytes` are what the leader sends to every other rank before a step, and what comes back after it.
    """

    layer: Layer
    layers: int
    branches: int
    attention_s: float
    other_s: float
    latent_bytes: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a step on one card."""
        return self.branches * self.layers * (self.attention_s + self.other_s)


def step_seconds(model: Model, plan: ParallelPlan, box: Box) -> float:
    """Seconds of one step with this plan: branches that have no ranks of their own share the forward.

    Layers are taken as alike and one after the other. ValueError when the plan does not fit the box or the model.
    """
    if plan.ranks != box.ranks:
        raise ValueError(f"The plan has {plan.ranks} ranks and the box {box.ranks} cards: the same number is allowed.")
    program = Forecast(model, plan)
    return model.layers * seconds(program.layer(), box) + seconds(program.ends(), box)


class Forecast:
    """The program of one layer, and of what frames the layers of a step."""

    def __init__(self, model: Model, plan: ParallelPlan) -> None:
        """ValueError when the heads allow no such plan."""
        self._model = model
        self._plan = plan
        self._program = Program()
        layer = model.layer
        self._heads = Heads.of(layer.query_heads, layer.key_heads, plan.ulysses, plan.head_groups)
        # Tokens of every rank of the sequence group, and of every block of the ring.
        self._lengths = split(layer.length, plan.ring * plan.ulysses)
        self._rows = [
            self._lengths[first : first + plan.ulysses] for first in range(0, len(self._lengths), plan.ulysses)
        ]
        self._blocks = [sum(row) for row in self._rows]
        self._branches = model.branches / plan.cfg
        self._row = self._branches * layer.batch * row_bytes(plan.codec, layer.channels, layer.itemsize)
        self._sending: dict[int, frozenset[int]] = {rank: frozenset() for rank in range(plan.ranks)}
        self._last: dict[tuple[int, int], int] = {}

    def layer(self) -> Program:
        everyone = range(self._plan.ranks)
        start = {rank: frozenset[int]() for rank in everyone}
        pieces = self._plan.head_groups
        coming = self._to_heads(0, start)
        going: dict[int, frozenset[int]] = start
        attended: Done = start
        for piece in range(pieces):
            # The next piece sets out when this one is there and the one before has been attended.
            here = {rank: coming[rank] | attended[rank] for rank in everyone}
            if piece + 1 < pieces:
                coming = self._to_heads(piece + 1, here)
            attended = self._attend(piece, here)
            back = self._to_tokens(piece, attended)
            going = {rank: going[rank] | back[rank] for rank in everyone}
        for rank in everyone:
            share = self._lengths[self._place(rank)] / self._model.layer.length
            self._program.work(rank, self._branches * self._model.other_s * share, going[rank])
        return self._program

    def ends(self) -> Program:
        """The latents from the leader to everybody, one after the other, and the shards of the prediction back."""
        program = Program()
        size = self._model.latent_bytes
        sent: list[int] = []
        for rank in range(1, self._plan.ranks) if size else ():
            sent.append(program.stream(0, rank, size, sent[-1:]))
        share = size * self._plan.cfg / self._plan.ranks
        for rank in range(1, self._plan.ranks) if size else ():
            sent.append(program.stream(rank, 0, share, sent[-1:]))
        return program

    def _place(self, rank: int) -> int:
        """The index of a rank in its sequence group."""
        _, ring, ulysses, _ = self._plan.coordinates(rank)
        return ring * self._plan.ulysses + ulysses

    def _attend(self, piece: int, here: Done) -> dict[int, frozenset[int]]:
        """The turns of the ring for one piece: the next block is under way while one is attended."""
        ring = self._plan.ring
        each = self._heads.of_piece(piece)
        held = dict(here)
        done: dict[int, frozenset[int]] = dict(here)
        for turn in range(ring):
            arriving: dict[int, set[int]] = {rank: set() for rank in held}
            for ranks in self._plan.members("ring") if turn < ring - 1 else ():
                for place, rank in enumerate(ranks):
                    after = ranks[(place + 1) % ring]
                    rows = self._blocks[(place - turn) % ring] * each[self._place(rank) % self._plan.ulysses] * 2
                    if rows:
                        needs = held[rank] | held[after] | done[rank] | done[after]
                        sent = self._program.stream(rank, after, rows * self._row, needs)
                        arriving[after].add(sent)
                        arriving[rank].add(sent)
            attended = {rank: self._attend_block(rank, turn, each, held[rank]) for rank in held}
            done = {rank: frozenset({attended[rank]}) for rank in held}
            held = {rank: frozenset(arriving[rank]) | done[rank] for rank in held}
        return done

    def _attend_block(self, rank: int, turn: int, each: Sequence[int], needs: frozenset[int]) -> int:
        ring, ulysses = divmod(self._place(rank), self._plan.ulysses)
        layer = self._model.layer
        keys = self._blocks[(ring - turn) % self._plan.ring]
        share = self._blocks[ring] / layer.length * keys / layer.length * each[ulysses] / layer.key_heads
        return self._program.work(rank, self._branches * self._model.attention_s * share, needs)

    def _to_heads(self, piece: int, ready: Done) -> dict[int, frozenset[int]]:
        each = self._heads.of_piece(piece)
        return self._among_ulysses(
            lambda row, source, target: row[source] * each[target] * (self._heads.shared + 2), ready
        )

    def _to_tokens(self, piece: int, ready: Done) -> dict[int, frozenset[int]]:
        each = self._heads.of_piece(piece)
        return self._among_ulysses(lambda row, source, target: row[target] * each[source] * self._heads.shared, ready)

    def _among_ulysses(self, rows: Callable[[Sequence[int], int, int], int], ready: Done) -> dict[int, frozenset[int]]:
        """rows(tokens of the group, source, target) from each to each; who is done after which streams."""
        done = dict(ready)
        for ranks in self._plan.members("ulysses") if self._plan.ulysses > 1 else ():
            tokens = self._rows[self._place(ranks[0]) // self._plan.ulysses]

            def size(source: int, target: int, tokens: Sequence[int] = tokens) -> float:
                return rows(tokens, source, target) * self._row

            done.update(self._staged(ranks, size, ready) if self._plan.staged else self._at_once(ranks, size, ready))
        return done

    def _at_once(self, ranks: Sequence[int], size: Size, ready: Done) -> dict[int, frozenset[int]]:
        streams = {
            (source, target): self._stream(source, target, size(at, to), ready[source] | ready[target])
            for at, source in enumerate(ranks)
            for to, target in enumerate(ranks)
            if source != target and size(at, to)
        }
        own = {rank: frozenset(number for ends, number in streams.items() if rank in ends) for rank in ranks}
        return {rank: own[rank] or ready[rank] for rank in ranks}

    def _staged(self, ranks: Sequence[int], size: Size, ready: Done) -> dict[int, frozenset[int]]:
        """size - 1 shifts, each when both ends are through with the one before, of this exchange or an earlier one."""
        count = len(ranks)
        before = {rank: ready[rank] | self._sending[rank] for rank in ranks}
        for distance in range(1, count):
            stage: dict[int, set[int]] = {rank: set() for rank in ranks}
            for place, source in enumerate(ranks):
                other = (place + distance) % count
                if size(place, other):
                    target = ranks[other]
                    number = self._stream(source, target, size(place, other), before[source] | before[target])
                    stage[source].add(number)
                    stage[target].add(number)
            before = {rank: frozenset(stage[rank]) or before[rank] for rank in ranks}
        self._sending.update(before)
        return before

    def _stream(self, source: int, target: int, size: float, needs: frozenset[int]) -> int:
        """Messages of a pair travel one after the other, in the order in which they were posted."""
        before = self._last.get((source, target))
        ordered = needs if before is None else needs | {before}
        self._last[source, target] = self._program.stream(source, target, size, ordered)
        return self._last[source, target]
