"""When work and streams that need each other end: a deterministic simulation on the links of a box."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from videoserve_kernels.comm.links import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of computing on one card, which computes one thing at a time in the order of the program."""

    rank: int
    seconds: float
    needs: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Bytes from one card to another."""

    source: int
    target: int
    bytes: float
    needs: frozenset[int]


@dataclass(slots=True)
class Program:
    """Tasks in order; a task may need earlier ones, by their numbers."""

    tasks: list[Work | Stream] = field(default_factory=list)

    def work(self, rank: int, seconds: float, needs: Iterable[int]) -> int:
        return self._add(Work(rank=rank, seconds=seconds, needs=frozenset(needs)))

    def stream(self, source: int, target: int, size: float, needs: Iterable[int]) -> int:
        return self._add(Stream(source=source, target=target, bytes=size, needs=frozenset(needs)))

    def _add(self, task: Work | Stream) -> int:
        self.tasks.append(task)
        return len(self.tasks) - 1


class Run:
    """One run of a program on a box."""

    def __init__(self, program: Program, box: Box) -> None:
        self._tasks = program.tasks
        self._box = box
        self._now = 0.0
        self._missing = {number: set(task.needs) for number, task in enumerate(program.tasks)}
        self._wanted: dict[int, list[int]] = {}
        for number, task in enumerate(program.tasks):
            for need in task.needs:
                self._wanted.setdefault(need, []).append(number)
        self._lanes: dict[int, list[int]] = {}
        for number, task in reversed(list(enumerate(program.tasks))):
            if isinstance(task, Work):
                self._lanes.setdefault(task.rank, []).append(number)
        self._ready = [number for number, task in enumerate(program.tasks) if not task.needs]
        self._left: dict[int, float] = {}
        # Seconds until a stream starts to travel.
        self._delayed: dict[int, float] = {}

    def seconds(self) -> float:
        """When the last task ends."""
        self._start_what_can()
        while self._left or self._delayed:
            rates = self._rates()
            ends = {number: left / rates[number] for number, left in self._left.items()} | self._delayed
            step = min(ends.values())
            self._now += step
            # What ends within a billionth of the step ends now: equal streams must not end one by one.
            over = [number for number, end in ends.items() if end <= step * (1 + 1e-9)]
            for number in self._left:
                self._left[number] -= rates[number] * step
            for number in self._delayed:
                self._delayed[number] -= step
            for number in over:
                if number in self._delayed:
                    self._start(number)
                else:
                    self._end(number)
            self._start_what_can()
        assert not self._missing, "a task needs one that never ends"
        return self._now

    def _rates(self) -> dict[int, float]:
        numbers = [number for number in self._left if isinstance(self._tasks[number], Stream)]
        streams = [self._tasks[number] for number in numbers]
        rates = self._box.rates([(task.source, task.target) for task in streams if isinstance(task, Stream)])
        return dict.fromkeys(self._left, 1.0) | dict(zip(numbers, rates, strict=True))

    def _start(self, number: int) -> None:
        task = self._tasks[number]
        assert isinstance(task, Stream)
        self._delayed.pop(number, None)
        self._left[number] = task.bytes

    def _end(self, number: int) -> None:
        del self._left[number]
        task = self._tasks[number]
        if isinstance(task, Work):
            self._lanes[task.rank].pop()
        self._missing.pop(number)
        for later in self._wanted.get(number, []):
            self._missing[later].discard(number)
            if not self._missing[later]:
                self._ready.append(later)

    def _start_what_can(self) -> None:
        waiting = []
        for number in sorted(self._ready):
            task = self._tasks[number]
            if isinstance(task, Stream) and self._box.latency:
                self._delayed[number] = self._box.latency
            elif isinstance(task, Stream):
                self._start(number)
            elif self._lanes[task.rank][-1] == number:
                self._left[number] = task.seconds
            else:
                waiting.append(number)
        self._ready = waiting


def seconds(program: Program, box: Box) -> float:
    """How long the program takes on the box. Tasks of no size end at once."""
    return Run(program, box).seconds()
