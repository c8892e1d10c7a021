"""A whole generation, picture and prompt to frames, by our engine against diffusers' pipeline; the demo model.

    python benchmarks/generation_vs_diffusers.py [--busy] [--rounds 5] [--steps 20] [--guidance 3]

Same picture, prompt, seed and text length; nothing is cached or skipped; neither side writes a file. Refuses to print
a time when the latents differ by more than 1e-4.
"""

import argparse
import io
import json
import statistics
import tempfile
from pathlib import Path

import torch
from _interleaved import add_options, pick_clock, seconds_of_each, table
from diffusers import WanImageToVideoPipeline
from PIL import Image
from torch import Tensor

from videoserve.config import Settings
from videoserve.planning.card import ModelCard, resolve_model
from videoserve.planning.plan import plan_video
from videoserve.storage.files import FileStore
from videoserve.types import Event, Job, VideoPlan, VideoRequest
from videoserve.video.denoise import finished
from videoserve.video.engine import VideoEngine
from videoserve.video.run import Run

TOLERANCE = 1e-4
PICTURE = Path(__file__).parents[1] / "videoserve" / "demo" / "pictures" / "astronaut.jpg"
PROMPT = "the camera pans slowly to the left"


class Generation:
    """One request, as both sides take it."""

    def __init__(self, data: Path, steps: int, guidance: float) -> None:
        model = resolve_model("demo")
        card = ModelCard.read(model)
        width, height = card.sizes[0]
        self.picture = Image.open(PICTURE).convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        out = io.BytesIO()
        self.picture.save(out, "PNG")
        files = FileStore(data / "files")
        request = VideoRequest(
            prompt=PROMPT, image=files.put(out.getvalue()), seed=1, num_inference_steps=steps, guidance_scale=guidance
        )
        self.plan = plan_video(request, card, self.picture.size, random_seed=0)
        self.request = request.to_dict()
        self.stages: dict[str, list[float]] = {}
        self.pipeline = WanImageToVideoPipeline.from_pretrained(model, dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)
        self.engine = VideoEngine(
            Settings(data=data, device="cpu", dtype="float32", checkpoint_steps=0, preview_steps=0), files, model
        )
        self.engine.load()

    def theirs(self, output: str = "np") -> Tensor:
        plan = self.plan
        return self.pipeline(
            image=self.picture,
            prompt=plan.prompt,
            negative_prompt=plan.negative_prompt,
            width=plan.width,
            height=plan.height,
            num_frames=plan.num_frames,
            num_inference_steps=plan.steps,
            guidance_scale=plan.guidance,
            max_sequence_length=plan.text_length,
            generator=torch.Generator("cpu").manual_seed(plan.seed),
            output_type=output,
        ).frames

    def ours_until(self, stage: str) -> Run:
        """Runs the job until it comes to `stage`, and takes it out of the engine."""
        plan = json.loads(json.dumps(self.plan.to_dict()))
        self.engine.admit(
            Job(id="job", kind="video", tenant="t", request=self.request, plan=plan, created_at=0.0), None
        )
        (run,) = list(self.engine._schedule)
        events: list[Event] = []
        while run.stage != stage:
            self.engine.step(events.append)
            if events[-1].kind == "failed":
                raise SystemExit(f"The job failed: {events[-1].data['message']}")
        self.engine.cancel("job")
        return run

    def ours(self) -> None:
        for stage, seconds in self.ours_until("write").record.seconds.items():
            self.stages.setdefault(stage, []).append(seconds)


def described(plan: VideoPlan) -> str:
    return (
        f"{plan.width}x{plan.height}, {plan.num_frames} frames, {plan.steps} steps, guidance {plan.guidance}, "
        f"text length {plan.text_length}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def main() -> None:
    options = argparse.ArgumentParser()
    add_options(options, rounds=5)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--guidance", type=float, default=3.0)
    chosen = options.parse_args()
    clock = pick_clock(chosen.busy)
    with tempfile.TemporaryDirectory() as data:
        generation = Generation(Path(data), chosen.steps, chosen.guidance)
        difference = (finished(generation.ours_until("decode")) - generation.theirs("latent")).abs().max()
        if not difference <= TOLERANCE:
            raise SystemExit(f"Our latents differ from diffusers' by {difference:.1e}: no time is worth printing.")
        print(f"largest difference of the latents from diffusers {difference:.1e}")
        print(described(generation.plan))
        taken = seconds_of_each({"diffusers": generation.theirs, "ours": generation.ours}, chosen.rounds, clock)
        print(table(taken, "diffusers"))
        stages = (f"{stage} {statistics.median(seconds):.3f}" for stage, seconds in generation.stages.items())
        print("ours by stage, median wall s: " + ", ".join(stages))


if __name__ == "__main__":
    main()
