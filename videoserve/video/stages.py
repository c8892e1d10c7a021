"""One unit of work for a run: a stage, or a denoising step, timed, recorded and told."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.media.image import fit
from videoserve.media.png import read_png
from videoserve.planning.plan import shape_key
from videoserve.storage.files import FileStore
from videoserve.types import Emit, Event
from videoserve.video.checkpoint import save_checkpoint
from videoserve.video.decode import check_picture, decode, is_flat
from videoserve.video.denoise import advance, finished, velocities
from videoserve.video.encode import cut_sentences, draw_noise, encode
from videoserve.video.environment import Environment
from videoserve.video.load import Components
from videoserve.video.memory import peak_memory
from videoserve.video.preview import Preview
from videoserve.video.progress import Costs, percent, position, remaining
from videoserve.video.receipt import make_receipt
from videoserve.video.run import Drawing, Run, need
from videoserve.video.write import write

log = logging.getLogger(__name__)

# How much the newest step counts in a run's own pace.
NEWEST = 0.5


@dataclass(slots=True)
class Clock:
    """Seconds that a piece of work took; 0 until it has ended."""

    seconds: float = 0.0


@dataclass(slots=True)
class Forward:
    """The guided velocity [1, C, F, H, W] of each run of a shared forward, and the seconds it took."""

    velocities: list[Tensor]
    seconds: float


class Stages:
    """What the engine does to runs. Holds the model, and nothing of any job between two calls."""

    def __init__(
        self,
        settings: Settings,
        files: FileStore,
        components: Components,
        environment: Environment,
        preview: Preview,
        costs: Costs,
    ) -> None:
        self._settings = settings
        self._files = files
        self._components = components
        self._environment = environment
        self._preview = preview
        self._costs = costs

    def encode(self, run: Run, emit: Emit) -> None:
        """Pictures and texts to the run's conditioning; noise to its latents."""
        device = self._components.device
        with self._timed("encode", [run], emit) as clock:
            first = self._picture(run, run.plan.image)
            last = None if run.plan.last_image is None else self._picture(run, run.plan.last_image)
            run.encoded, run.record.tokens = encode(self._components, run.plan, first, last)
            run.flat_picture = is_flat(first)
            run.latents = draw_noise(run.plan, device)
            run.solver = self._components.solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=device)
            run.stage = "denoise"
        self._costs.record(shape_key(run.plan), "encode", clock.seconds)
        for sentence in cut_sentences(run.plan, run.record.tokens):
            self._adjust(run, sentence, emit)
        self._tell_progress(run, emit)

    def forward(self, runs: Sequence[Run], emit: Emit) -> Forward:
        """The costly half of a denoising step, for all runs at once; no run moves yet."""
        with self._timed("denoise", runs, emit) as clock:
            rows = velocities(self._components, runs)
        return Forward(rows, clock.seconds)

    def advance(self, run: Run, velocity: Tensor, forward: Forward, emit: Emit) -> None:
        """Moves a run one step by its velocity of `forward`."""
        step = position(run)[0] + 1
        with self._timed("denoise", [run], emit) as clock:
            guess = advance(run, velocity, estimate=due(step, self._settings.preview_steps))
        last = step == position(run)[1]
        if last:
            run.stage = "decode"
            run.contexts.clear()
            self._components.ranks.drop(run.id)
        self._record_step(run, len(forward.velocities), forward.seconds + clock.seconds)
        self._tell_progress(run, emit)
        if guess is not None:
            emit(Event(job_id=run.id, kind="preview", data=self._preview.event_data(guess, step)))
        every = self._settings.checkpoint_steps
        if due(step, every) or (last and every > 0):
            self._checkpoint(run, emit)

    def decode(self, run: Run, emit: Emit) -> None:
        """The next piece of the latents to frames; after the last one, the check that there is a picture in them."""
        with self._timed("decode", [run], emit) as clock:
            drawn = run.drawing or Drawing(pieces=decode(self._components, finished(run), run.id))
            run.drawing = drawn
            drawn.frames.append(next(drawn.pieces))
            if drawn.count() == run.plan.num_frames:
                frames = np.concatenate(drawn.frames)
                check_picture(frames, flat_picture=run.flat_picture)
                run.frames, run.drawing = frames, None
                run.stage = "write"
        drawn.seconds += clock.seconds
        if run.stage == "write":
            self._costs.record(shape_key(run.plan), "decode", drawn.seconds)
            self._tell_progress(run, emit)

    def write(self, run: Run, emit: Emit) -> None:
        """Frames to files; with this the job is done."""
        with self._timed("write", [run], emit) as clock:
            written = write(need(run.frames, "frames"), run.plan, self._files)
        self._costs.record(shape_key(run.plan), "write", clock.seconds)
        for sentence in written.notes:
            self._adjust(run, sentence, emit)
        receipt = make_receipt(run, self._components, self._environment, written.outputs, time.time())
        outputs = {variant: output.to_dict() for variant, output in written.outputs.items()}
        run.stage = "done"
        self._tell_progress(run, emit)
        emit(Event(job_id=run.id, kind="done", data={"outputs": outputs, "receipt": receipt}))

    @contextmanager
    def _timed(self, stage: str, runs: Sequence[Run], emit: Emit) -> Iterator[Clock]:
        """Tells the stage where it is new, and adds what the work inside took to the runs' records."""
        for run in runs:
            if run.told != stage:
                run.told = stage
                emit(Event(job_id=run.id, kind="stage", data={"stage": stage}))
        device, clock = self._components.device, Clock()
        began = time.perf_counter()
        with peak_memory(device, *(run.record for run in runs)):
            yield clock
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        clock.seconds = time.perf_counter() - began
        for run in runs:
            run.record.spend(stage, clock.seconds)

    def _picture(self, run: Run, sha256: str) -> NDArray[np.uint8]:
        """A stored picture as the model gets it, [H, W, 3]."""
        picture = read_png(self._files.read(sha256))
        return fit(picture, run.plan.width, run.plan.height, run.plan.resize_mode)

    def _record_step(self, run: Run, batch: int, seconds: float) -> None:
        run.record.computed += "R"
        run.record.batches.append(batch)
        run.pace = seconds if run.pace is None else NEWEST * seconds + (1 - NEWEST) * run.pace
        if batch == 1:
            self._costs.record(shape_key(run.plan), "step", seconds)

    def _adjust(self, run: Run, sentence: str, emit: Emit) -> None:
        run.record.adjustments.append(sentence)
        emit(Event(job_id=run.id, kind="adjusted", data={"sentence": sentence}))

    def _tell_progress(self, run: Run, emit: Emit) -> None:
        costs = self._costs.of(run.plan)
        step, steps = position(run)
        left = remaining(run, costs)
        data = {
            "progress": percent(run, costs),
            "step": step,
            "steps": steps,
            "eta_s": None if left is None else round(left, 3),
        }
        emit(Event(job_id=run.id, kind="progress", data=data))

    def _checkpoint(self, run: Run, emit: Emit) -> None:
        try:
            data: dict[str, Any] = save_checkpoint(run, self._components, self._files)
        except (ServeError, OSError) as error:
            # Losing a safety net is no reason to fall: the job itself is fine.
            log.warning("no checkpoint stored", extra={"job": run.id, "reason": str(error)})
        else:
            emit(Event(job_id=run.id, kind="checkpoint", data=data))


def due(step: int, every: int) -> bool:
    """Whether something done every so many steps (0: never) is done after this one."""
    return every > 0 and step % every == 0
