"""One admitted job on its way through the stages: everything the engine holds of it, and nothing outside."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from videoserve.types import Job, VideoPlan
from videoserve.video.families.conditioning import Conditioning
from videoserve.video.families.context import TextContext
from videoserve.video.solver import Solver
from videoserve.video.watch import Watch
from videoserve_cache.steps.cache import StepCache

RunStage = Literal["encode", "denoise", "decode", "write", "done"]


@dataclass(slots=True)
class Encoded:
    """What the encoders made of a request.

    `texts` are the text encoder's outputs without padding, [n, C] each: the prompt's, then the negative prompt's when
    there is guidance; `text_length` is what they are padded to. `image_embeds` is CLIP's [1, I, C] on the layout that
    has it.
    """

    texts: tuple[Tensor, ...]
    image_embeds: Tensor | None
    conditioning: Conditioning
    text_length: int


@dataclass(slots=True)
class Record:
    """What has been done for a run so far; survives a crash in the checkpoint, ends in the receipt.

    `computed` has a letter a step (R: run, .: forecast), `batches` how many jobs shared the forward of each, 0 where
    there was none; seconds by stage; `resumed` the steps that had been taken at each resume; memory in bytes. `policy`
    is the step cache's, as JSON, `foretold` what the `calibration` of this digest says of it. `reuse`
    has what was looked for of earlier requests, see planning/reuse.py; a step that one of them has computed is a K.
    `crowded` when the step cache ended early because other jobs' took its room: at another time more is forecast.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    computed: str = ""
    batches: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    adjustments: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    peak_memory: int = 0
    policy: dict[str, Any] | None = None
    calibration: str | None = None
    foretold: dict[str, Any] | None = None
    fidelity: dict[str, Any] | None = None
    reuse: list[dict[str, Any]] = field(default_factory=list)
    crowded: bool = False
    started_at: float = 0.0

    def spend(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds


@dataclass(slots=True, eq=False)
class Drawing:
    """Frames [F, H, W, 3] decoded so far, what gives the next ones, and the seconds it has taken."""

    pieces: Iterator[NDArray[np.uint8]]
    frames: list[NDArray[np.uint8]] = field(default_factory=list)
    seconds: float = 0.0

    def count(self) -> int:
        return sum(len(frames) for frames in self.frames)


@dataclass(slots=True, eq=False)
class Before:
    """Latents [1, C, F, H, W] and solver as they were before steps that will be taken again."""

    latents: Tensor
    solver: Solver


@dataclass(slots=True, eq=False)
class Reference:
    """The uncached video beside a run's own: `latents` [1, C, F, H, W] are of the one that is not being computed.

    phase `denoise`: the run computes the reference, whose latents are its own meanwhile, and has put its step cache
    aside; `wait`: the run's own frames are drawn; `decode`: the reference's are.
    """

    latents: Tensor
    steps: StepCache | None = None
    phase: Literal["denoise", "wait", "decode"] = "denoise"


@dataclass(slots=True, eq=False)
class Run:
    """A job with its tensors. `contexts` has one entry an expert, made when the expert is first needed.

    `latents` [1, C, F, H, W] are kept to the end, so that a run can be suspended in any stage. `steps` is the step
    cache, None where every step is computed, and `watch` what is measured of those. `told` is the stage that has been
    told last, `untold` are sentences that are told with the next one. `alone` keeps the run out of shared forwards.
    `boundary` is how many steps were behind it when it last left its state to later requests. `whole` is False when it
    began with somebody else's last latents: it is quicker begun again than kept.
    """

    job: Job
    plan: VideoPlan
    rank: float
    stage: RunStage = "encode"
    encoded: Encoded | None = None
    contexts: dict[int, TextContext] = field(default_factory=dict)
    latents: Tensor | None = None
    solver: Solver | None = None
    steps: StepCache | None = None
    before: Before | None = None
    watch: Watch | None = None
    reference: Reference | None = None
    drawing: Drawing | None = None
    frames: NDArray[np.uint8] | None = None
    flat_picture: bool = False
    record: Record = field(default_factory=Record)
    told: str = ""
    untold: list[str] = field(default_factory=list)
    progress: int = 0
    pace: float | None = None
    alone: bool = False
    boundary: int | None = None
    whole: bool = True

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def guided(self) -> bool:
        """Whether there is an unconditional branch; the first expert's scale alone decides, as in diffusers."""
        return self.plan.guidance > 1

    @property
    def verifying(self) -> bool:
        """Whether the next unit of work is for the reference, not for the video."""
        return self.reference is not None and self.reference.phase != "wait"

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor this run keeps between two units of work."""
        if self.latents is not None:
            yield self.latents
        if self.encoded is not None:
            yield from self.encoded.texts
            yield self.encoded.conditioning.fixed
            if self.encoded.image_embeds is not None:
                yield self.encoded.image_embeds
        for context in self.contexts.values():
            yield from (*context.keys, *context.values, *context.image_keys, *context.image_values, context.key_bias)
        if self.solver is not None:
            yield from self.solver.device_tensors()
        if self.reference is not None:
            yield self.reference.latents
        if self.before is not None:
            yield self.before.latents
            yield from self.before.solver.device_tensors()

    def bytes_held(self) -> int:
        """Bytes of the tensors and frames kept."""
        drawn = [] if self.drawing is None else self.drawing.frames
        frames = sum(array.nbytes for array in (*drawn, self.frames) if array is not None)
        cached = 0 if self.steps is None else self.steps.nbytes
        return frames + cached + sum(tensor.nbytes for tensor in self.tensors())

    def close(self) -> None:
        """Gives back what the step cache holds of a budget that all runs share."""
        if self.steps is not None:
            self.steps.close()


def need(value: Any, what: str) -> Any:
    """`value`, which the stage before has set."""
    assert value is not None, f"{what} is set by an earlier stage"
    return value
