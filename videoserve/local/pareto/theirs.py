"""diffusers' own pipeline with its caches, and with cache-dit, on the same weights and seeds."""

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import MagCacheConfig, WanImageToVideoPipeline
from torch import Tensor

from videoserve.local.pareto.cases import Case
from videoserve.local.pareto.clip import Clip
from videoserve.local.pareto.ours import Ours, Prepared

# A cache, put onto a pipeline; what it gives takes it off again.
Install = Callable[[Any], Callable[[], None]]


class Theirs:
    """The pipeline denoises, our decoder decodes: both rows' frames come of the same decoder."""

    def __init__(self, ours: Ours) -> None:
        self._ours = ours
        self.pipeline = WanImageToVideoPipeline.from_pretrained(ours.directory, dtype=torch.float32)
        self.pipeline.set_progress_bar_config(disable=True)

    def clip(self, case: Case, prepared: Prepared, install: Install | None) -> Clip:
        """The video with a cache, or without one."""
        remove = install(self.pipeline) if install is not None else lambda: None
        with Marks(self.pipeline.transformer, self._ours.clock) as marks:
            latents = self.run(case, prepared, marks.step)
        remove()
        frames, decode_s = self._ours.decoded(latents)
        whole_s = prepared.encode_s + marks.seconds + decode_s
        return Clip(frames=frames, denoise_s=marks.seconds, whole_s=whole_s, letters=marks.letters)

    def run(self, case: Case, prepared: Prepared, stepped: Callable[[], None]) -> Tensor:
        """Finished latents [1, C, F, H, W]."""
        plan = prepared.plan

        def end(pipeline: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            stepped()
            return {}

        latents: Tensor = self.pipeline(
            image=self._ours.picture(case),
            prompt=plan.prompt,
            negative_prompt=plan.negative_prompt,
            width=plan.width,
            height=plan.height,
            num_frames=plan.num_frames,
            num_inference_steps=plan.steps,
            guidance_scale=plan.guidance,
            max_sequence_length=plan.text_length,
            generator=torch.Generator("cpu").manual_seed(plan.seed),
            output_type="latent",
            callback_on_step_end=end,
        ).frames
        return latents

    def ratios(self, cases: list[tuple[Case, Prepared]]) -> list[float]:
        """MagCache's ratios: what its own calibration prints, averaged over both branches and these cases."""
        said = io.StringIO()
        steps = self._ours.steps
        for case, prepared in cases:
            self.pipeline.transformer.enable_cache(MagCacheConfig(calibrate=True, num_inference_steps=steps))
            with contextlib.redirect_stdout(said):
                self.run(case, prepared, lambda: None)
            self.pipeline.transformer.disable_cache()
        rows = [[float(x) for x in row.split(",")] for row in re.findall(r"\[([\d., e+-]+)\]", said.getvalue())]
        assert all(len(row) == steps for row in rows), said.getvalue()
        return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


class Marks:
    """When the denoising of a pipeline begins and ends, and in which of its steps a middle block is computed."""

    def __init__(self, transformer: Any, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._blocks = 0
        self._began: float | None = None
        self._ended = 0.0
        self.letters = ""
        blocks = transformer.blocks
        self._hooks = [
            transformer.register_forward_pre_hook(self._begin),
            # A module within the attention: what a cache puts around a block or its attention does not run it.
            blocks[len(blocks) // 2].attn1.to_q.register_forward_pre_hook(self._block),
        ]

    def __enter__(self) -> "Marks":
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def seconds(self) -> float:
        assert self._began is not None
        return self._ended - self._began

    def step(self) -> None:
        self._ended = self._clock()
        self.letters += ".rR"[self._blocks]
        self._blocks = 0

    def _begin(self, module: Any, inputs: Any) -> None:
        if self._began is None:
            self._began = self._clock()

    def _block(self, module: Any, inputs: Any) -> None:
        self._blocks += 1


@contextmanager
def hushed() -> Iterator[None]:
    """Without what the rivals warn, log and print about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
