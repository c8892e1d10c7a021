"""The one way bytes travel between ranks: every collective is an exchange of messages with known sizes."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor

from videoserve_kernels.comm.counters import Counters
from videoserve_kernels.comm.sequence import CollectiveSequence

TAGS = 2**31
T = TypeVar("T")
U = TypeVar("U")


class CommunicationError(RuntimeError):
    """A collective could not finish: a peer died, stood still past the time limit, or issued another collective.

    The process groups of the mesh are dead afterwards: the ranks have to be started again.
    """


class Handle(Generic[T]):
    """A collective under way. Work done between its start and `wait` overlaps with it."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish = finish
        self._result: list[T] = []

    def wait(self) -> T:
        """The result, as soon as it is there; the same one when asked again. CommunicationError when it cannot be."""
        if not self._result:
            self._result.append(self._finish())
        return self._result[0]

    def then(self, change: Callable[[T], U]) -> "Handle[U]":
        """The same collective, with its result changed at the moment somebody waits for it."""
        return Handle(lambda: change(self.wait()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What the groups of one mesh share on this rank: the counters, the sequence and the thread that runs stages."""

    counters: Counters
    sequence: CollectiveSequence
    thread: ThreadPoolExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The ranks of one axis of the mesh, seen from one of them. A group of one has no process group and moves nothing.

    `ranks` are global and in the order of the axis; `index` is this rank's place among them.
    """

    name: str
    ranks: tuple[int, ...]
    index: int
    process: dist.ProcessGroup | None
    numbers: Iterator[int]
    staged: bool
    link: Link

    @property
    def size(self) -> int:
        return len(self.ranks)


def as_bytes(x: Tensor) -> Tensor:
    """The memory of a contiguous tensor as uint8 [n]: gloo does not know every dtype (fp8), but it knows bytes."""
    return x.reshape(-1).view(torch.uint8)


def exchange(
    group: Group, op: str, outgoing: Mapping[int, Tensor], incoming: Mapping[int, Tensor], *, number: int | None = None
) -> Handle[None]:
    """Sends contiguous tensors and fills others with what the peers send; keys are indices within the group.

    Every rank must post the exchanges of a group in the same order, and both ends of a message must agree on its
    size. Empty tensors are not sent. In a staged group the messages travel as size - 1 shifts, one after the other:
    one outbound and one inbound stream a rank. Otherwise all of them travel at once. `number` takes the messages out
    of the order of the group.
    """
    sends = {peer: as_bytes(x) for peer, x in outgoing.items() if x.numel()}
    receives = {peer: as_bytes(x) for peer, x in incoming.items() if x.numel()}
    group.link.counters.count(
        op, group.name, sent=(x.numel() for x in sends.values()), received=(x.numel() for x in receives.values())
    )
    number = next(group.numbers) if number is None else number
    label = f"{op} number {number} of the group {group.name} ({group.size} ranks)"
    stages = list(shifts(group, sends, receives, number))
    if not group.staged:
        # Receives before sends: a pair that sends first runs at half of the line rate.
        stages = [sorted((message for stage in stages for message in stage), key=lambda m: m.op is dist.isend)]
    return post(group.link.thread, label, [stage for stage in stages if stage])


def shifts(
    group: Group, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], number: int
) -> Iterator[list[dist.P2POp]]:
    """The messages in size - 1 stages: in stage s everybody sends to index + s and receives from index - s."""
    for distance in range(1, group.size):
        source, target = (group.index - distance) % group.size, (group.index + distance) % group.size
        stage = []
        if source in receives:
            stage.append(message(dist.irecv, receives[source], group, source, number))
        if target in sends:
            stage.append(message(dist.isend, sends[target], group, target, number))
        yield stage


def message(op: Callable[..., Any], x: Tensor, group: Group, peer: int, number: int) -> dist.P2POp:
    """One message. Its tag is made of number and size: gloo ends the process that gets more bytes than it expects."""
    tag = crc32(struct.pack("<QQ", number, x.numel())) % TAGS
    return dist.P2POp(op, x, group=group.process, group_peer=peer, tag=tag)


def post(thread: ThreadPoolExecutor, label: str, stages: Sequence[list[dist.P2POp]]) -> Handle[None]:
    """Starts the first stage now; the later ones each when the one before has ended.

    On a GPU the stream keeps the stages in order and the host only posts them. On a CPU somebody has to stand by:
    the thread of the mesh does, which also keeps the stages of several exchanges from sharing the wire.
    """
    if len(stages) > 1 and stages[0][0].tensor.device.type == "cpu":
        running = thread.submit(run, label, stages)
        return Handle(running.result)
    works = [work for stage in stages for work in begin(label, stage)]
    return Handle(lambda: finish(label, works))


def run(label: str, stages: Sequence[list[dist.P2POp]]) -> None:
    # The caller's buffers may be inference tensors, which nobody may write outside of inference mode.
    with torch.inference_mode():
        for stage in stages:
            finish(label, begin(label, stage))


def begin(label: str, stage: list[dist.P2POp]) -> list[dist.Work]:
    try:
        works: list[dist.Work] = dist.batch_isend_irecv(stage)
    except RuntimeError as error:
        raise CommunicationError(broken(label, error)) from error
    return works


def finish(label: str, works: Sequence[dist.Work], limit_s: float | None = None) -> None:
    """Waits for messages under way, each as long as its group allows or for limit_s seconds."""
    try:
        for work in works:
            work.wait() if limit_s is None else work.wait(timedelta(seconds=limit_s))
    except RuntimeError as error:
        raise CommunicationError(broken(label, error)) from error


def broken(label: str, error: RuntimeError) -> str:
    return f"{label} broke off: a peer died, stood still past the time limit or issued another collective ({error})."
