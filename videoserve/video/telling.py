"""What a run's client hears while it is worked on, and what its record says of the time that takes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from videoserve.types import Emit, Event
from videoserve.video.load import Components
from videoserve.video.memory import peak_memory
from videoserve.video.progress import Costs, percent, remaining, shown
from videoserve.video.run import Run


@dataclass(slots=True)
class Clock:
    """Seconds that a piece of work took; 0 until it has ended."""

    seconds: float = 0.0


class Telling:
    """Events of runs, and the seconds and memory of pieces of their work."""

    def __init__(self, components: Components, costs: Costs) -> None:
        self._components = components
        self._costs = costs

    @contextmanager
    def timed(self, stage: str, runs: Sequence[Run], emit: Emit) -> Iterator[Clock]:
        """Tells the stage where it is new, and adds what the work inside took to the runs' records."""
        self.stage(stage, runs, emit)
        device, clock = self._components.device, Clock()
        names = ["verify" if run.verifying else stage for run in runs]
        began = time.perf_counter()
        with peak_memory(device, *(run.record for run in runs)):
            yield clock
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        clock.seconds = time.perf_counter() - began
        for run, name in zip(runs, names, strict=True):
            run.record.spend(name, clock.seconds)

    def adjust(self, run: Run, sentence: str, emit: Emit) -> None:
        run.record.adjustments.append(sentence)
        emit(Event(job_id=run.id, kind="adjusted", data={"sentence": sentence}))

    def stage(self, stage: str, runs: Sequence[Run], emit: Emit) -> None:
        for run in runs:
            if run.told != stage:
                run.told = stage
                emit(Event(job_id=run.id, kind="stage", data={"stage": stage}))
                for sentence in run.untold:
                    self.adjust(run, sentence, emit)
                run.untold.clear()

    def progress(self, run: Run, emit: Emit) -> None:
        costs = self._costs.of(run.plan)
        step, steps = shown(run)
        left = remaining(run, costs)
        data = {
            "progress": percent(run, costs),
            "step": step,
            "steps": steps,
            "eta_s": None if left is None else round(left, 3),
        }
        emit(Event(job_id=run.id, kind="progress", data=data))
