"""What 8 bits on the wire cost in quality: a whole generation of the demo model on two Ulysses ranks, by codec.

    python benchmarks/wire_error.py [--steps 20] [--frames 17]

For each codec: the relative L2 error of the queries, keys and values of the model's own activations after a round trip
over the wire (all layers, first, middle and last step), the bytes that the ranks sent in all steps beside those without
a codec, the error of the final latents, and the PSNR of the final video against the one without a codec. Refuses to
print figures when two ranks without a codec differ from one rank by more than 1e-4 in the latents.
"""

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from _two_ranks import two_ranks
from PIL import Image
from torch import Tensor

from videoserve.media.image import fit
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import plan_video
from videoserve.types import Job, VideoPlan, VideoRequest
from videoserve.video.denoise import advance, finished, velocities
from videoserve.video.encode import draw_noise, encode
from videoserve.video.engine import VideoEngine
from videoserve.video.families import block
from videoserve.video.leader import Leader
from videoserve.video.load import Components
from videoserve.video.ranks import Plans
from videoserve.video.run import Run, need
from videoserve.video.warmup import drawn
from videoserve_kernels.comm.mesh import Mesh
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.wire import codec_named

TOLERANCE = 1e-4
CODECS = ("none", "int8", "fp8")
PICTURE = Path(__file__).parents[1] / "videoserve" / "demo" / "pictures" / "astronaut.jpg"
PROMPT = "the camera pans slowly to the left"


class Errors:
    """The error of a round trip over the wire of everything that attention is given, while it looks."""

    def __init__(self, name: str) -> None:
        self._codec = codec_named(name)
        self._attention = block.attention
        self.looking = False
        self.wrong = {"q": 0.0, "k": 0.0, "v": 0.0}
        self.whole = {"q": 0.0, "k": 0.0, "v": 0.0}

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mesh: Mesh, *, length: int) -> Tensor:
        for name, x in (("q", q), ("k", k), ("v", v)) if self.looking else ():
            back = self._codec.decode(self._codec.encode(x), (x.shape[0], x.shape[1], x.shape[2], x.shape[3]), x.dtype)
            self.wrong[name] += float((back - x).square().sum())
            self.whole[name] += float(x.square().sum())
        return self._attention(q, k, v, mesh, length=length)

    def __enter__(self) -> "Errors":
        block.attention = self.attention
        return self

    def __exit__(self, *exception: object) -> None:
        block.attention = self._attention

    def relative(self) -> dict[str, float]:
        return {name: math.sqrt(self.wrong[name] / self.whole[name]) for name in self.wrong}


def lead(engine: VideoEngine, model: Path, chosen: argparse.Namespace) -> None:
    engine.load(warm=False)
    both = engine.components
    plan = plan_of(model, chosen)
    truth, _, _ = generated(replace(both, ranks=Leader(None, device=both.device)), plan, None)
    results = {}
    for name in CODECS:
        both.ranks.begin(Plans.of(ParallelPlan(ulysses=2, codec=name)), both.config)
        with Errors(name) as errors:
            latents, frames, sent = generated(both, plan, errors)
        results[name] = latents, frames, sent, errors.relative()
    engine.close()
    difference = relative(results["none"][0], truth)
    if not difference <= TOLERANCE:
        raise SystemExit(f"Two ranks differ from one by {difference:.1e}: no figure is worth printing.")
    print(f"{plan.width}x{plan.height}, {plan.num_frames} frames, {plan.steps} steps, guidance {plan.guidance:g}")
    print(f"{'codec':6}{'q':>10}{'k':>10}{'v':>10}{'MB sent':>10}{'share':>8}{'latents':>10}{'PSNR dB':>9}")
    for name, (latents, frames, sent, errors) in results.items():
        parts = "".join(f"{errors[part]:10.1e}" for part in "qkv")
        share = sent / results["none"][2]
        off = relative(latents, results["none"][0])
        print(f"{name:6}{parts}{sent / 1e6:10.1f}{share:8.3f}{off:10.1e}{psnr(frames, results['none'][1]):9.1f}")


def generated(
    components: Components, plan: VideoPlan, errors: Errors | None
) -> tuple[Tensor, np.ndarray[tuple[int, ...], np.dtype[np.uint8]], int]:
    """Final latents, frames, and the bytes of attention that this rank sent."""
    run = Run(job=Job(id="video", kind="video", tenant="", request={}, plan={}, created_at=0.0), plan=plan, rank=0.0)
    picture = fit(Image.open(PICTURE).convert("RGB"), plan.width, plan.height, plan.resize_mode)
    run.encoded, _ = encode(components, plan, picture, None)
    run.latents = draw_noise(plan, components.device)
    run.solver = components.solver.start(plan.steps, flow_shift=plan.flow_shift, device=components.device)
    mesh = components.ranks.meshes.guided
    for step in range(plan.steps):
        if errors is not None:
            errors.looking = step in (0, plan.steps // 2, plan.steps - 1)
        advance(run, velocities(components, [run])[0], estimate=False)
    sent = mesh.counters.sent("all_to_all").bytes
    frames = drawn(components, run)
    components.ranks.drop(run.id)
    return finished(run), frames, sent


def plan_of(model: Path, chosen: argparse.Namespace) -> VideoPlan:
    card = ModelCard.read(model)
    request = VideoRequest(
        prompt=PROMPT, image="", seed=1, num_inference_steps=chosen.steps, num_frames=chosen.frames, guidance_scale=3.0
    )
    return plan_video(request, card, card.sizes[0], random_seed=0)


def relative(got: Tensor, truth: Tensor) -> float:
    return float((got - truth).norm() / need(truth, "truth").norm())


def psnr(frames: np.ndarray, truth: np.ndarray) -> float:  # type: ignore[type-arg]
    """Of the frames after the first, which repeats the picture."""
    wrong = np.square(frames[1:].astype(float) - truth[1:]).mean()
    return math.inf if wrong == 0 else 10 * math.log10(255**2 / wrong)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--frames", type=int, default=17)
    chosen = options.parse_args()
    two_ranks(lead, chosen)


if __name__ == "__main__":
    main()
