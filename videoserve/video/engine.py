"""The video engine: admitted jobs in, events out, one unit of work at a time."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from videoserve.config import Settings
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import shape_key
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Emit, Event, Job, VideoPlan, rank
from videoserve.video.bindings import Shelf
from videoserve.video.checkpoint import UnusableCheckpointError, restore_checkpoint, save_checkpoint
from videoserve.video.choose import choose, told
from videoserve.video.digest import DigestMemo
from videoserve.video.environment import describe
from videoserve.video.failure import deadline_failure, failure_of, hopeless_failure
from videoserve.video.kept import Kept
from videoserve.video.leader import Leader, open_channel
from videoserve.video.load import load_components
from videoserve.video.maker import maker_of
from videoserve.video.memo import Memo
from videoserve.video.memory import release
from videoserve.video.preview import Preview
from videoserve.video.progress import Costs, remaining
from videoserve.video.ranks import Plans
from videoserve.video.run import Run
from videoserve.video.schedule import Schedule
from videoserve.video.stages import Stages
from videoserve.video.step_policy import StepPolicies
from videoserve.video.steps import Steps
from videoserve.video.warmup import warm_up, warmth_key
from videoserve_cache.steps.curve import Curves
from videoserve_cache.tiers import SharedCache
from videoserve_kernels.comm.exchange import CommunicationError
from videoserve_kernels.device import pick_device, pick_dtype

log = logging.getLogger(__name__)

# Not the fault of a job: a device that is of no more use, or a rank that is gone. The worker starts again.
BROKEN = (torch.AcceleratorError, CommunicationError)


class VideoEngine:
    """types.Engine for one model; one thread calls it, `load` first.

    A job's tensors belong to its Run, and the schedule is the only place that keeps runs: what leaves it is free.
    """

    kind = "video"

    def __init__(
        self,
        settings: Settings,
        files: FileStore,
        model_dir: Path,
        cache: SharedCache | None = None,
        *,
        calibrating: bool = False,
    ) -> None:
        """`cache` is what is kept between requests; None: nothing is. It is closed by whoever opened it.

        With `calibrating` every job is computed in full and watched, whatever its cache field says.
        """
        self._settings = settings
        self._files = files
        self._model_dir = model_dir
        self._costs = Costs()
        self._limits: dict[str, int] = {}
        self._schedule = Schedule(self._limit)
        self._policies = StepPolicies(settings, calibrating)
        self._cache = cache
        # What a heartbeat tells of it, beside ready or not: never another number of entries.
        self.shown: dict[str, object] = {"plans": None, "maker": None}
        # Under which key the next process finds what this one measures; None without a warm-up.
        self._warm: str | None = None
        # Set by a failure: its exception still holds tensors while it is being handled.
        self._untidy = False

    def load(self, *, warm: bool = True) -> None:
        """Loads the model, fits the preview, and generates once at the default shape, so that no client waits for it.

        Not where an earlier process has, with the same model, device and settings: what it found out is kept in the
        data folder. Without `warm` nothing is generated at all: for a process that makes one video, which would only
        wait longer. Jobs go alone then unless settings.batch says otherwise. Raises ValueError, a sentence, for a
        directory, device or dtype that cannot be used.
        """
        settings = self._settings
        device = pick_device(settings.device)
        dtype = pick_dtype(settings.dtype, device)
        memo = DigestMemo(settings.data / "digests.json")
        ranks = Leader(open_channel(), device=device, time_limit_s=settings.collective_timeout_s)
        self.components = load_components(
            self._model_dir, device=device, dtype=dtype, memo=memo, ranks=ranks, adapters=Shelf.of(settings)
        )
        ranks.begin(Plans.named(settings.parallel, ranks.size, settings.wire), self.components.config)
        self.environment = describe(device, dtype)
        self._memo = Memo(settings.data / "learned.json")
        preview = Preview.remembered(self.components, self._memo)
        self._kept = kept = Kept(self._cache, device, batches_equal=settings.batch <= 1)
        model = settings, self._files, self.components
        self._stages = Stages(*model, self.environment, self._costs, self._policies, kept)
        self._steps = Steps(*model, preview, self._costs, self._policies, kept)
        self.shown["plans"] = told(ranks.meshes.plans)
        if warm:
            if settings.parallel == "auto" and ranks.size > 1:
                chosen = choose(self.components, settings, self._model_dir)
                self.shown["plans"] = told(ranks.meshes.plans, chosen)
            self._warm_up()
        if self._cache is not None:
            # Not before it is known how the ranks share the work.
            kept.maker = maker_of(self.components, self.environment, self._model_dir, memo)
            self.shown["maker"] = kept.maker.to_dict()

    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None:
        """Takes a job in, where `checkpoint` left it. ValueError when the job is here already.

        A checkpoint that cannot be used is told in the log and the job starts over, to the same end.
        """
        run = self._fresh(job)
        if checkpoint is not None:
            try:
                restore_checkpoint(run, checkpoint, self.components, self._files, self._policies.budget)
            except UnusableCheckpointError as error:
                log.warning("checkpoint not used, the job starts over", extra={"job": job.id, "reason": str(error)})
                run = self._fresh(job)
        self._schedule.add(run)

    def step(self, emit: Emit) -> bool:
        """One unit of work: a stage of a job, or a denoising step of one or several. False when nothing is left."""
        self._end_overdue(emit)
        runs = self._schedule.pick()
        if runs and runs[0].stage == "denoise":
            self._denoise(runs, emit)
        elif runs:
            self._do_stage(runs[0], emit)
        if self._untidy:
            release(self.components.device)
            self._untidy = False
        # A model that could not be loaded has no ranks.
        if not len(self._schedule) and hasattr(self, "components"):
            self.components.ranks.rest()
        return len(self._schedule) > 0

    def cancel(self, job_id: str) -> None:
        """Forgets a job and frees what it held; nothing when it is not here."""
        self._forget(job_id)

    def suspend(self, job_id: str) -> dict[str, Any] | None:
        """Stores a job's state and forgets the job: {sha256, stage, step}, or None when nothing is computed yet.

        Raises ServeError when the disk is full; the job is still here then.
        """
        run, checkpoint = self._schedule.get(job_id), None
        if run is not None and run.stage != "encode" and run.whole:
            checkpoint = save_checkpoint(run, self.components, self._files)
        del run
        self.cancel(job_id)
        return checkpoint

    def wants(self) -> Appetite | None:
        return self._schedule.appetite()

    def costs(self) -> dict[str, Any]:
        """Measured seconds by shape key: encode, step, decode, write."""
        return self._costs.to_dict()

    def curves(self, job: Job) -> Curves:
        """What a calibration gives videos like this job's. ValueError where there is none yet."""
        run = Run(job=job, plan=VideoPlan.from_dict(job.plan), rank=0.0)
        solver = self.components.solver
        run.solver = solver.start(run.plan.steps, flow_shift=run.plan.flow_shift, device=self.components.device)
        curves = self._policies.curves(run, self.components)
        if curves is None:
            raise ValueError("There is no calibration of such videos, or one of too few of them.")
        return curves

    def bytes_held(self) -> int:
        """Bytes of the tensors and frames of all admitted jobs."""
        return sum(run.bytes_held() for run in self._schedule)

    def close(self) -> None:
        """Forgets every job and the model."""
        for run in self._schedule:
            self._schedule.drop(run.id)
            run.close()
        if hasattr(self, "components"):
            self._kept.close()
            self.components.ranks.close()
            device = self.components.device
            del self.components, self._stages, self._steps
            release(device)

    def _fresh(self, job: Job) -> Run:
        self._schedule.check(job.id)
        urgency = rank(job.created_at, job.priority, self._settings.aging_s)
        run = Run(job=job, plan=VideoPlan.from_dict(job.plan), rank=urgency)
        run.record.started_at = time.time()
        return run

    def _warm_up(self) -> None:
        self._warm = warmth_key(self.components, self.environment, self._settings.batch)
        known = self._memo.get(self._warm)
        if known is not None:
            self._limits.update(known["limits"])
            self._costs.restore(known["costs"])
            return
        card = ModelCard.read(self._model_dir)
        self._limits.update(warm_up(self.components, card, self._costs, self._settings.batch))
        release(self.components.device)
        self._remember()

    def _remember(self) -> None:
        """Keeps what has been measured for the next process."""
        if self._warm is not None:
            self._memo.keep(self._warm, {"limits": self._limits, "costs": self._costs.to_dict()})

    def _forget(self, job_id: str) -> None:
        run = self._schedule.drop(job_id)
        if run is not None:
            run.close()
            self.components.ranks.drop(job_id)

    def _limit(self, run: Run) -> int:
        return self._settings.batch or self._limits.get(shape_key(run.plan), 1)

    def _do_stage(self, run: Run, emit: Emit) -> None:
        stages: dict[str, Callable[[Run, Emit], None]] = {
            "encode": self._stages.encode,
            "decode": self._stages.decode,
            "write": self._stages.write,
        }
        with self._guarded(run, emit):
            stages[run.stage](run, emit)
        if run.stage == "done":
            self._forget(run.id)
            self._remember()

    def _denoise(self, runs: list[Run], emit: Emit) -> None:
        waiting = []
        for run in runs:
            with self._guarded(run, emit):
                if not self._steps.skip(run, emit):
                    waiting.append(run)
        # Those that skipped may catch up with those that did not: what is computed then is computed together.
        if len(waiting) == len(runs):
            self._compute(runs, emit)

    def _compute(self, runs: list[Run], emit: Emit) -> None:
        try:
            forward = self._steps.forward(runs, emit)
        except BROKEN:
            raise
        except Exception as error:
            if len(runs) == 1:
                self._fail(runs[0], error, emit)
            # Nobody has moved: each takes this step alone, and only the one at fault fails.
            for run in runs:
                run.alone = True
            self._untidy = True
            return
        for run, velocity in zip(runs, forward.velocities, strict=True):
            with self._guarded(run, emit):
                self._steps.advance(run, velocity, forward, emit)

    @contextmanager
    def _guarded(self, run: Run, emit: Emit) -> Iterator[None]:
        """An exception inside fails this run and nothing else; a broken device is the worker's to handle."""
        try:
            yield
        except BROKEN:
            raise
        except Exception as error:
            self._fail(run, error, emit)

    def _fail(self, run: Run, error: Exception, emit: Emit) -> None:
        failure = failure_of(error, run, self.components.device)
        if failure.code == "internal_error":
            log.error("a job failed", exc_info=error, extra={"job": run.id})
        self._forget(run.id)
        self._untidy = True
        data = {"code": failure.code, "message": failure.message, "retry": failure.retry}
        emit(Event(job_id=run.id, kind="failed", data=data))

    def _end_overdue(self, emit: Emit) -> None:
        """Fails the jobs whose deadline has passed, and those that cannot make it before they are begun."""
        now = time.time()
        for run in self._schedule:
            if run.job.deadline is None:
                continue
            left = run.job.deadline - now
            costs = self._costs.exact(run.plan)
            need_s = remaining(run, costs) if costs is not None else None
            if left < 0:
                self._fail(run, deadline_failure(-left), emit)
            elif run.stage == "encode" and need_s is not None and need_s > left:
                self._fail(run, hopeless_failure(left, need_s), emit)
