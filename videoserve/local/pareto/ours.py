"""Our engine's stages, one video after the other, with any policy of the step cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image

from videoserve.local.pareto.cases import Case
from videoserve.local.pareto.clip import Clip, Frames
from videoserve.media.image import fit
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.types import Job, VideoPlan, VideoRequest
from videoserve.video.decode import decode
from videoserve.video.denoise import advance, finished, velocities
from videoserve.video.digest import DigestMemo
from videoserve.video.encode import draw_noise, encode
from videoserve.video.leader import Leader
from videoserve.video.load import load_components
from videoserve.video.quiet import quiet
from videoserve.video.run import Encoded, Run, need
from videoserve.video.step_cache import begin, forecast, keep, schedule_of, skips
from videoserve.video.watch import Watch
from videoserve_cache.steps.calibration import Calibration, Sample, Subject
from videoserve_cache.steps.policy import Policy
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget

BUDGET = 1 << 32
Clock = Callable[[], float]


@dataclass(slots=True)
class Prepared:
    """What every run of a case shares: the plan for the full number of steps, the encoders' outputs, their seconds."""

    plan: VideoPlan
    encoded: Encoded
    encode_s: float


class Ours:
    """The demo model on the CPU, in float32."""

    def __init__(self, steps: int, guidance: float, clock: Clock) -> None:
        quiet()
        self.steps = steps
        self.guidance = guidance
        self.clock = clock
        self.directory = resolve_model("demo")
        self.card = ModelCard.read(self.directory)
        device = torch.device("cpu")
        self.components = load_components(
            self.directory,
            device=device,
            dtype=torch.float32,
            memo=DigestMemo(None),
            ranks=Leader(None, device=device),
        )

    def prepare(self, case: Case) -> Prepared:
        """Plans and encodes a case."""
        width, height = self.card.sizes[0]
        request = VideoRequest(
            prompt=case.prompt,
            image="",
            width=width,
            height=height,
            seed=case.seed,
            num_inference_steps=self.steps,
            guidance_scale=self.guidance,
        )
        plan = plan_video(request, self.card, case.picture.size, random_seed=0)
        picture = np.asarray(self.picture(case))
        began = self.clock()
        encoded, _ = encode(self.components, plan, picture, None)
        return Prepared(plan, encoded, self.clock() - began)

    def picture(self, case: Case) -> Image.Image:
        """As the engine would fit it to the model's first size."""
        return Image.fromarray(fit(case.picture, *self.card.sizes[0], "crop"))

    def begin(self, prepared: Prepared, steps: int, policy: Policy | None = None) -> Run:
        """A run before its first step."""
        plan = replace(prepared.plan, steps=steps)
        job = Job(id="clip", kind="video", tenant="bench", request={}, plan={}, created_at=0.0)
        run = Run(job=job, plan=plan, rank=0.0, encoded=prepared.encoded)
        run.latents = draw_noise(plan, self.components.device)
        run.solver = self.components.solver.start(steps, flow_shift=plan.flow_shift, device=self.components.device)
        if policy is not None:
            begin(run, policy, Budget(BUDGET), self.components.ranks.meshes.of(run.guided))
        return run

    def denoise(self, run: Run) -> None:
        """All steps, as the engine takes them."""
        solver = need(run.solver, "solver")
        while need(run.solver, "solver").index < solver.total:
            if skips(run):
                advance(run, forecast(run), estimate=False)
                continue
            (velocity,) = velocities(self.components, [run])
            if run.watch is not None:
                run.watch.step(need(run.latents, "latents"), velocity)
            keep(run, velocity)
            advance(run, velocity, estimate=False)

    def clip(self, prepared: Prepared, *, steps: int | None = None, policy: Policy | None = None) -> Clip:
        """The video, with its seconds."""
        began = self.clock()
        run = self.begin(prepared, steps or self.steps, policy)
        self.denoise(run)
        denoise_s = self.clock() - began
        frames, decode_s = self.decoded(finished(run))
        letters = "R" * run.plan.steps if run.steps is None else run.steps.receipt()["steps"]
        run.close()
        whole_s = prepared.encode_s + denoise_s + decode_s
        return Clip(frames=frames, denoise_s=denoise_s, whole_s=whole_s, letters=letters)

    def decoded(self, latents: torch.Tensor) -> tuple[Frames, float]:
        """Frames [F, H, W, 3] of finished latents, and the seconds that took."""
        began = self.clock()
        frames = np.concatenate(list(decode(self.components, latents, "clip")))
        return frames, self.clock() - began

    def schedule(self, prepared: Prepared, steps: int) -> Schedule:
        return schedule_of(self.begin(prepared, steps))

    def sample(self, prepared: Prepared, steps: int) -> Sample:
        """What an uncached run of a case shows for a calibration."""
        run = self.begin(prepared, steps)
        run.watch = Watch(given=int(self.components.layout.clean_first_frame))
        self.denoise(run)
        run.watch.finish(need(run.latents, "latents"))
        assert run.watch.sample is not None
        return run.watch.sample

    def calibration(self, cases: list[Prepared], steps: int) -> Calibration:
        """Of so many uncached runs; its seconds are in units of a computed step."""
        plan = cases[0].plan
        subject = Subject(
            model=self.components.digest,
            adapters=(),
            solver=self.components.solver.scheduler.__name__,
            steps=steps,
            size=(plan.num_frames, plan.height, plan.width),
            dtype="float32",
            guidance=(plan.guidance,),
        )
        samples = tuple(self.sample(case, steps) for case in cases)
        schedule = self.schedule(cases[0], steps)
        return Calibration(subject=subject, schedule=schedule, samples=samples, run_s=1.0, skip_s=0.0, fixed_s=0.0)
