"""Exchanges between the ranks of a world, timed: every rank learns the same figures."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from videoserve_kernels.comm.collectives import all_gather, all_reduce
from videoserve_kernels.comm.exchange import Group, Handle, exchange
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.small import all_reduce_at_once
from videoserve_kernels.comm.speed import synchronize

REPEATS = 3
# Bytes of a message: the first try, and what every later one stays between.
FIRST, LEAST, MOST = 2**20, 2**12, 2**26
# Exchanges of all with all in a row: their messages are short, and the last ones to arrive have the links alone.
IN_A_ROW = 4
# Messages in a row whose mean is the latency.
SHORT_ONES = 20
# Bytes of the smallest sum over all ranks that is tried both ways, and how many are made in a row.
LEAST_SUM, SUMS = 2**10, 5


class Probe:
    """The exchanges of one world, timed. Every rank calls the same ones in the same order and gets the same figures."""

    def __init__(self, ranks: int, device: torch.device, time_limit_s: float) -> None:
        self._at_once = Mesh(ParallelPlan(ulysses=ranks, staged=False), device=device, time_limit_s=time_limit_s)
        self._staged = Mesh(ParallelPlan(ulysses=ranks), device=device, time_limit_s=time_limit_s)
        self.ranks = ranks
        self.rank = self._at_once.rank
        self.device = device
        self.size = FIRST
        self._resize(FIRST)

    def close(self) -> None:
        self._at_once.close()
        self._staged.close()

    def size_for(self, seconds: float) -> None:
        """From now on messages of about so many seconds, going by what a first shift takes."""
        rate = FIRST / self.seconds(lambda: self.send(self.next_ones()))
        agreed = self.longest(min(max(rate * seconds, LEAST), MOST))
        self._resize(int(agreed))

    def next_ones(self, distance: int = 1) -> dict[int, int]:
        """Who sends to whom when everybody sends to the rank `distance` further."""
        return {rank: (rank + distance) % self.ranks for rank in range(self.ranks)}

    def rate(self, targets: Mapping[int, int]) -> float:
        """Bytes/s of each sender while rank i sends to targets[i]; the slowest one's."""
        return self.size / self.travel_seconds(lambda size: self.send(targets, size), self.size)

    def rate_of_all(self, groups: Sequence[Sequence[int]], *, staged: bool) -> float:
        """Bytes/s of a rank of the largest group while in all groups everybody sends to everybody."""
        peers = [peer for group in groups if self.rank in group for peer in group if peer != self.rank]
        most = max(len(group) for group in groups) - 1
        each = max(self.size // max(most, 1), 1)
        mesh = self._staged if staged else self._at_once
        outgoing = {peer: self._full[:each] for peer in peers}
        incoming = {peer: self._empty[place * each : (place + 1) * each] for place, peer in enumerate(peers)}

        def go(size: int) -> None:
            cut_out = {peer: x[:size] for peer, x in outgoing.items()}
            cut_in = {peer: x[:size] for peer, x in incoming.items()}
            under_way = [exchange(mesh.world, "probe", cut_out, cut_in, number=1) for _ in range(IN_A_ROW)]
            for handle in under_way:
                handle.wait()

        return IN_A_ROW * most * each / self.travel_seconds(go, each)

    def latency(self) -> float:
        """Seconds of a message of one byte between two ranks, both sending, nobody else at work.

        Where all ranks send such messages on few cores they wait for a core, as they do not beside messages of a size.
        """

        def go() -> None:
            for _ in range(SHORT_ONES):
                self.send({0: 1, 1: 0}, size=1)

        return self.seconds(go) / SHORT_ONES

    def at_once_bytes(self) -> int:
        """The largest sum over all ranks that one exchange makes faster than two, of sizes that double; 0 for none.

        Sums are tried up to the size of messages, and until two sizes in a row are slower.
        """
        best, slower, size = 0, 0, LEAST_SUM
        while size <= self.size and slower < 2:
            x = self._full[:size].view(torch.float32)
            at_once, in_two = (self.seconds(partial(self._sums, make, x)) for make in (all_reduce_at_once, all_reduce))
            best, slower = (size, 0) if at_once <= in_two else (best, slower + 1)
            size *= 2
        return best

    def send(self, targets: Mapping[int, int], size: int | None = None) -> None:
        """Rank i sends to targets[i], all at the same time; the others do nothing."""
        size = self.size if size is None else size
        outgoing = {targets[self.rank]: self._full[:size]} if self.rank in targets else {}
        incoming = {source: self._empty[:size] for source, target in targets.items() if target == self.rank}
        if outgoing or incoming:
            exchange(self._at_once.world, "probe", outgoing, incoming, number=1).wait()

    def travel_seconds(self, work: Callable[[int], object], size: int) -> float:
        """What messages of `size` bytes take beyond the same ones of one byte: that part is counted as latency.

        At least half of the whole: where there is less, the messages were too short to tell the two apart.
        """
        whole = self.seconds(lambda: work(size))
        return max(whole - self.seconds(lambda: work(1)), whole / 2)

    def seconds(self, work: Callable[[], object]) -> float:
        """The shortest of REPEATS runs, each as long as the slowest rank's."""
        return min(self.longest(self._run(work)) for _ in range(REPEATS))

    def longest(self, value: float) -> float:
        """The largest of the ranks' values; also the place where all of them meet."""
        own = torch.tensor([value], dtype=torch.float64, device=self.device)
        return max(part.item() for part in all_gather(own, [1] * self.ranks, self._at_once.world).wait())

    def _sums(self, make: Callable[[Tensor, Group], Handle[Tensor]], x: Tensor) -> None:
        for _ in range(SUMS):
            make(x, self._at_once.world).wait()

    def _run(self, work: Callable[[], object]) -> float:
        self.longest(0.0)
        synchronize(self.device)
        began = time.perf_counter()
        work()
        synchronize(self.device)
        return time.perf_counter() - began

    def _resize(self, size: int) -> None:
        self.size = size
        self._full = torch.ones(size, dtype=torch.uint8, device=self.device)
        # Room for one part from every peer.
        self._empty = torch.zeros(size + self.ranks, dtype=torch.uint8, device=self.device)
