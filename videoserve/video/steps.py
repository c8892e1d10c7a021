"""Denoising, a step at a time: computed for one run or several, or forecast, and what follows it."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from videoserve.config import Settings
from videoserve.errors import ServeError
from videoserve.planning.plan import shape_key
from videoserve.storage.files import FileStore
from videoserve.types import Emit, Event
from videoserve.video.checkpoint import save_checkpoint
from videoserve.video.denoise import advance, check_latents, expert_of, velocities
from videoserve.video.inside import inside, taken, will_hold
from videoserve.video.kept import Kept
from videoserve.video.load import Components
from videoserve.video.preview import Preview
from videoserve.video.progress import Costs, position
from videoserve.video.resume import leave_boundary, leave_final, switch
from videoserve.video.run import Run, need
from videoserve.video.step_cache import forecast, give_up, keep, skips
from videoserve.video.step_policy import StepPolicies
from videoserve.video.telling import Telling
from videoserve.video.verify import begin_reference, end_reference, wanted
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.store import BudgetExceededError

log = logging.getLogger(__name__)

# How much the newest step counts in a run's own pace.
NEWEST = 0.5


@dataclass(slots=True)
class Forward:
    """The guided velocity [1, C, F, H, W] of each run of a shared forward, and the seconds it took."""

    velocities: list[Tensor]
    seconds: float


class Steps:
    """What the engine does to runs in stage denoise. Holds the model, and nothing of any job between two calls."""

    def __init__(
        self,
        settings: Settings,
        files: FileStore,
        components: Components,
        preview: Preview,
        costs: Costs,
        policies: StepPolicies,
        kept: Kept,
    ) -> None:
        self._settings = settings
        self._files = files
        self._components = components
        self._preview = preview
        self._costs = costs
        self._policies = policies
        self._kept = kept
        self._telling = Telling(components, costs)

    def skip(self, run: Run, emit: Emit) -> bool:
        """Moves a run one step by a forecast where its step cache says so; False when the step is to be computed."""
        began = time.perf_counter()
        if not skips(run):
            return False
        self._telling.stage("denoise", [run], emit)
        guess = advance(run, forecast(run), estimate=self._shows(run))
        # Nothing waits for the device here: the next computed step checks what came of it.
        self._stepped(run, Decision.SKIP, 0, time.perf_counter() - began, guess, emit)
        return True

    def forward(self, runs: Sequence[Run], emit: Emit) -> Forward:
        """The costly half of a denoising step, for all runs at once; no run moves yet."""
        self._make_room(runs[0], emit)
        with self._telling.timed("denoise", runs, emit) as clock:
            rows = velocities(self._components, runs)
        return Forward(rows, clock.seconds)

    def advance(self, run: Run, velocity: Tensor, forward: Forward, emit: Emit) -> None:
        """Moves a run one step by its velocity of `forward`."""
        decision = taken(run)
        if run.watch is not None:
            run.watch.step(need(run.latents, "latents"), velocity)
        with self._telling.timed("denoise", [run], emit) as clock:
            self._keep(run, velocity, emit)
            guess = advance(run, velocity, estimate=self._shows(run))
            check_latents(run)
        if run.watch is not None:
            run.watch.stepped(clock.seconds)
        seconds = forward.seconds + clock.seconds
        run.pace = seconds if run.pace is None else NEWEST * seconds + (1 - NEWEST) * run.pace
        if len(forward.velocities) == 1 and decision is Decision.RUN:
            self._costs.record(shape_key(run.plan), "step", seconds)
        self._stepped(run, decision, len(forward.velocities), 0.0, guess, emit)

    def _shows(self, run: Run) -> bool:
        """Whether the step that a run takes next is followed by a preview."""
        return due(position(run)[0] + 1, self._settings.preview_steps)

    def _keep(self, run: Run, velocity: Tensor, emit: Emit) -> None:
        try:
            keep(run, velocity)
        except BudgetExceededError as error:
            self._do_without(run, str(error), emit)

    def _make_room(self, run: Run, emit: Emit) -> None:
        """A cache that decides inside the forward ends before one where it would not fit: no rank is left alone."""
        if not inside(run) or need(run.steps, "steps").nbytes > 0:
            return
        mesh = self._components.ranks.meshes.of(run.guided)
        try:
            self._policies.budget.check(will_hold(run, self._components.experts[expert_of(run)], mesh))
        except BudgetExceededError as error:
            self._do_without(run, str(error), emit)

    def _do_without(self, run: Run, why: str, emit: Emit) -> None:
        self._telling.adjust(run, give_up(run, why), emit)

    def _stepped(
        self, run: Run, decision: Decision, batch: int, seconds: float, guess: Tensor | None, emit: Emit
    ) -> None:
        """What follows a step that was taken: the record, the news, the checkpoint."""
        step, steps = position(run)
        if not run.verifying:
            run.record.computed += decision
            run.record.batches.append(batch)
            run.record.spend("denoise", seconds)
        if step == steps:
            self._denoised(run)
        self._telling.progress(run, emit)
        if guess is not None:
            emit(Event(job_id=run.id, kind="preview", data=self._preview.event_data(guess, step)))
        every = self._settings.checkpoint_steps
        if run.stage == "decode":
            leave_final(run, self._kept)
        elif not run.verifying and (due(step, every) or step == switch(run)):
            leave_boundary(run, self._kept)
        if due(step, every) or (step == steps and every > 0):
            self._checkpoint(run, emit)

    def _denoised(self, run: Run) -> None:
        """What follows the last step: the decode, or the steps of the reference that is asked for."""
        run.close()
        run.contexts.clear()
        self._components.ranks.drop(run.id)
        if run.watch is not None:
            run.watch.finish(need(run.latents, "latents"))
        if run.verifying:
            end_reference(run)
        elif wanted(run):
            begin_reference(run, self._components)
            return
        run.stage = "decode"

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
