"""The ranks of a plan as a mesh: who I am on each axis, the groups I talk to, and whether we all agree."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist

from videoserve_kernels.comm.counters import Counters
from videoserve_kernels.comm.exchange import Group, Handle, Link, exchange
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.sequence import CollectiveSequence, SequenceMismatchError, first_difference, lengths
from videoserve_kernels.comm.split import slices, split

# Ulysses before ring before the whole: where two have the same ranks, the first one's group serves both.
GROUPS: dict[str, tuple[str, ...]] = {
    "ulysses": ("ulysses",),
    "ring": ("ring",),
    "cfg": ("cfg",),
    "tensor": ("tensor",),
    "sequence": ("ring", "ulysses"),
    "world": ("cfg", "ring", "ulysses", "tensor"),
}
CPU = torch.device("cpu")


class Mesh:
    """One rank's view of the mesh of a plan. With one rank every collective is the identity and nothing is set up.

    `ulysses`, `ring`, `cfg`, `tensor`, `sequence` (ring and ulysses together) and `world` are its groups; `counters`
    has what it sent and received. Close it, or use it as a context, to let the groups go.
    """

    def __init__(self, plan: ParallelPlan, *, device: torch.device = CPU, time_limit_s: float = 30.0) -> None:
        """Every rank of torch.distributed's world calls this with the same plan; one rank needs no world.

        `device` is where the tensors are that it moves; `time_limit_s` is how long a collective waits for a peer before
        it raises. ValueError when the world has another size than the plan.
        """
        present = dist.get_world_size() if dist.is_initialized() else 1
        if plan.ranks not in (1, present):
            raise ValueError(f"The plan needs {plan.ranks} ranks, but {present} are there.")
        self.plan = plan
        self.rank = dist.get_rank() if plan.ranks > 1 else 0
        self.device = device
        self.counters = Counters()
        self._time_limit = timedelta(seconds=time_limit_s)
        self._connect()

    @property
    def ulysses(self) -> Group:
        return self._groups["ulysses"]

    @property
    def ring(self) -> Group:
        return self._groups["ring"]

    @property
    def cfg(self) -> Group:
        return self._groups["cfg"]

    @property
    def tensor(self) -> Group:
        return self._groups["tensor"]

    @property
    def sequence(self) -> Group:
        return self._groups["sequence"]

    @property
    def world(self) -> Group:
        return self._groups["world"]

    def lengths(self, length: int) -> tuple[int, ...]:
        """How many of `length` tokens each rank of the sequence group holds."""
        return split(length, self.sequence.size)

    def shard(self, length: int) -> slice:
        """Which of `length` tokens this rank holds; rotary tables and frame indices are cut by it as well."""
        return slices(self.lengths(length))[self.sequence.index]

    def end_step(self) -> None:
        """Compares what the ranks issued since the last call: one message from each to each.

        SequenceMismatchError on every rank when the ranks of a group differ. Where the difference has made a rank
        wait for a message that nobody sends, its collective raises CommunicationError at the time limit instead.
        """
        self.step_ending().wait()

    def step_ending(self) -> Handle[None]:
        """The same comparison under way: `wait` before the next one begins."""
        ended = self.collectives.ended()
        self.collectives.next_step()
        names = sorted({group.name for group in self._groups.values()})
        summaries = self._from_all(self.world, ended.summary(names), 4 * ended.step + 1)
        return summaries.then(lambda all_of_them: self._compare(ended, names, all_of_them))

    def _compare(self, ended: CollectiveSequence, names: list[str], summaries: list[bytes]) -> None:
        for position, name in enumerate(names):
            entry = slice(16 * position, 16 * position + 16)
            for ranks in self.plan.members(*GROUPS[name]):
                if len({summaries[rank][entry] for rank in ranks}) > 1:
                    issued = {rank: lengths(summaries[rank])[position] for rank in ranks}
                    self._report(ended, name, ranks, issued)

    def renew(self) -> None:
        """Makes the groups anew, with no collective issued: after one broke off. Every rank calls it in its turn."""
        self.close()
        self._connect()

    def close(self) -> None:
        """Ends the thread and the process groups; handles that were not waited for are lost."""
        self._link.thread.shutdown(cancel_futures=True)
        for process in {id(group.process): group.process for group in self._groups.values() if group.process}.values():
            dist.destroy_process_group(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> None:
        self.collectives = CollectiveSequence()
        self._link = Link(
            counters=self.counters,
            sequence=self.collectives,
            thread=ThreadPoolExecutor(max_workers=1, thread_name_prefix="videoserve-comm"),
        )
        self._groups = self._make_groups(self._time_limit)

    def _make_groups(self, time_limit: timedelta) -> dict[str, Group]:
        made: dict[tuple[int, ...], Group] = {}
        groups = {}
        for name, axes in GROUPS.items():
            for ranks in self.plan.members(*axes):
                process = None
                if len(ranks) > 1 and ranks not in made:
                    # Every rank of the world has to take part in making every group, its own or not.
                    process = dist.new_group(list(ranks), timeout=time_limit)
                if ranks not in made:
                    made[ranks] = self._group(name, ranks, process)
                if self.rank in ranks:
                    groups[name] = made[ranks]
        return groups

    def _group(self, name: str, ranks: tuple[int, ...], process: dist.ProcessGroup | None) -> Group:
        index = ranks.index(self.rank) if self.rank in ranks else -1
        return Group(
            name=name,
            ranks=ranks,
            index=index,
            process=process,
            numbers=count(0, 2),
            staged=self.plan.staged,
            link=self._link,
        )

    def _report(self, ended: CollectiveSequence, name: str, ranks: tuple[int, ...], issued: dict[int, int]) -> None:
        step = ended.step
        told = ", ".join(f"rank {rank} issued {count}" for rank, count in issued.items())
        message = f"Step {step}: the ranks of the group {name} issued different collectives ({told})"
        if self.rank not in ranks:
            raise SequenceMismatchError(f"{message}; the first that differs is known to them only.")
        shared = min(issued.values())
        mine = ended.history(name, shared)
        position = first_difference(self._from_all(self._groups[name], mine, 4 * step + 3).wait())
        raise SequenceMismatchError(
            f"{message}; they part at number {position}, where rank {self.rank} {ended.describe(name, position)}."
        )

    def _from_all(self, group: Group, mine: bytes, number: int) -> Handle[list[bytes]]:
        """The bytes of every rank of the group, all of one length. Odd numbers: not among the group's collectives."""
        own = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else torch.empty(0, dtype=torch.uint8)
        own = own.to(self.device)
        boxes = [torch.empty_like(own) if peer != group.index else own for peer in range(group.size)]
        peers = [peer for peer in range(group.size) if peer != group.index]
        sent = exchange(
            group, "compare", dict.fromkeys(peers, own), {peer: boxes[peer] for peer in peers}, number=number
        )
        return sent.then(lambda _: [bytes(box.cpu().numpy()) for box in boxes])
