"""The stages of a run besides denoising: encode, decode and write, timed, recorded and told."""

import logging
import time

import numpy as np
from numpy.typing import NDArray

from videoserve.config import Settings
from videoserve.errors import JobFailed, NotFound
from videoserve.media.image import fit
from videoserve.media.png import read_png
from videoserve.planning.plan import shape_key
from videoserve.storage.files import FileStore
from videoserve.types import Emit
from videoserve.video.decode import check_picture, decode
from videoserve.video.denoise import finished
from videoserve.video.encode import cut_sentences, draw_noise
from videoserve.video.encode_kept import encode_kept
from videoserve.video.environment import Environment
from videoserve.video.kept import Kept
from videoserve.video.load import Components
from videoserve.video.near import take_near
from videoserve.video.progress import Costs
from videoserve.video.receipt import make_receipt
from videoserve.video.results import done, leave_result, take_result
from videoserve.video.resume import take_boundary, take_final
from videoserve.video.run import Drawing, Run, need
from videoserve.video.step_policy import StepPolicies
from videoserve.video.telling import Telling
from videoserve.video.verify import drawn
from videoserve.video.write import write

log = logging.getLogger(__name__)


class Stages:
    """What the engine does to runs. Holds the model, and nothing of any job between two calls."""

    def __init__(
        self,
        settings: Settings,
        files: FileStore,
        components: Components,
        environment: Environment,
        costs: Costs,
        policies: StepPolicies,
        kept: Kept,
    ) -> None:
        self._settings = settings
        self._files = files
        self._components = components
        self._environment = environment
        self._costs = costs
        self._policies = policies
        self._kept = kept
        self._telling = Telling(components, costs)

    def encode(self, run: Run, emit: Emit) -> None:
        """Pictures and texts to the run's conditioning; noise to its latents. Or further, where others have been."""
        # What the last request has left is there for this one.
        self._kept.settle()
        for event in take_result(run, self._kept, self._files):
            emit(event)
        if run.stage == "done":
            return
        denoised = take_final(run, self._components, self._kept)
        with self._telling.timed("encode", [run], emit) as clock:
            notes = [] if denoised else self._begin(run)
        if not denoised:
            notes += self._find_start(run)
        if not any(entry["hit"] for entry in run.record.reuse):
            self._costs.record(shape_key(run.plan), "encode", clock.seconds)
        for sentence in (*notes, *cut_sentences(run.plan, run.record.tokens)):
            self._telling.adjust(run, sentence, emit)
        self._telling.progress(run, emit)

    def decode(self, run: Run, emit: Emit) -> None:
        """The next piece of the latents to frames; after the last one, the check that there is a picture in them."""
        with self._telling.timed("decode", [run], emit) as clock:
            drawing = run.drawing or Drawing(pieces=decode(self._components, finished(run), run.id))
            run.drawing = drawing
            drawing.frames.append(next(drawing.pieces))
            whole = drawing.count() == run.plan.num_frames
            if whole:
                frames = np.concatenate(drawing.frames)
                check_picture(frames, flat_picture=run.flat_picture)
                run.drawing = None
                run.stage = "write" if drawn(run, frames) else "decode"
        drawing.seconds += clock.seconds
        if whole:
            self._costs.record(shape_key(run.plan), "decode", drawing.seconds)
            self._telling.progress(run, emit)

    def write(self, run: Run, emit: Emit) -> None:
        """Frames to files; with this the job is done."""
        with self._telling.timed("write", [run], emit) as clock:
            written = write(need(run.frames, "frames"), run.plan, self._files)
        self._costs.record(shape_key(run.plan), "write", clock.seconds)
        for sentence in written.notes:
            self._telling.adjust(run, sentence, emit)
        self._policies.learn(run, self._components, self._costs)
        receipt = make_receipt(run, self._components, self._environment, written.outputs, time.time())
        leave_result(run, self._kept, self._files, written.outputs, receipt)
        run.stage = "done"
        self._telling.progress(run, emit)
        emit(done(run, written.outputs, receipt))

    def _begin(self, run: Run) -> list[str]:
        """All that denoising takes; sentences about what is not as asked."""
        device = self._components.device
        run.solver = self._components.solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=device)
        notes = self._policies.begin(run, self._components)
        encode_kept(self._components, run, self._kept, lambda sha256: self._picture(run, sha256))
        run.latents = draw_noise(run.plan, device)
        run.stage = "denoise"
        return notes

    def _find_start(self, run: Run) -> list[str]:
        """Where on the way denoising begins; in place of steps, so that its time is theirs."""
        began = time.perf_counter()
        take_boundary(run, self._components, self._kept)
        notes = take_near(run, self._components, self._kept)
        if self._kept.cache is not None:
            run.record.spend("denoise", time.perf_counter() - began)
        return notes

    def _picture(self, run: Run, sha256: str) -> NDArray[np.uint8]:
        """A stored picture as the model gets it, [H, W, 3]."""
        try:
            picture = read_png(self._files.read(sha256))
        except NotFound:
            raise JobFailed("image_missing", "The picture of this video is no longer in the file store.") from None
        return fit(picture, run.plan.width, run.plan.height, run.plan.resize_mode)
