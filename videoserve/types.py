"""The types that cross rooms. Frozen; the changing state of a job lives in the broker only."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

Status = Literal["queued", "in_progress", "completed", "failed"]
Stage = Literal["queued", "encode", "denoise", "decode", "write", "done"]
ResizeMode = Literal["crop", "pad", "stretch"]
# Which experts of a model: "high" and "low" noise are those of a model with two.
ExpertTarget = Literal["all", "high", "low"]


# Stands for the id of whichever job a receipt is for.
ANY_JOB = "<job>"


class JsonRecord:
    """A dataclass whose fields JSON can hold; tuples come back as tuples through `from_dict` of the class.

    `records` are its fields that are tuples of records themselves.
    """

    __slots__ = ()
    records: ClassVar["dict[str, type[JsonRecord]]"] = {}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        told = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        nested = {name: tuple(map(kind.from_dict, told[name])) for name, kind in cls.records.items() if name in told}
        return cls(**told | nested)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAsk(JsonRecord):
    """An adapter that a request names, and what was found under the name when the request was taken.

    digest   of its file; None: not looked up yet
    parts    what it changes: "any" (every expert), "high", "low"
    steps    how many denoising steps a distilled adapter is made for; None for others
    """

    name: str
    scale: float = 1.0
    target: ExpertTarget = "all"
    digest: str | None = None
    parts: tuple[str, ...] = ()
    steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterUse(JsonRecord):
    """An adapter by its digest, with its weight, on the experts that it really changes ("all" where there is one)."""

    digest: str
    weight: float
    target: ExpertTarget = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoRequest(JsonRecord):
    """What the client asked, validated, nothing chosen yet: None means "not said".

    `image` and `last_image` are sha256 digests of normalised pictures in the file store; `image_notes` are the
    sentences about what normalising them changed. `seed` -1 asks for a random one, as None does. `cache` is the JSON
    object that says what the step cache may do. `loras` in the order of the request.
    """

    records: ClassVar[dict[str, type[JsonRecord]]] = {"loras": LoraAsk}

    prompt: str
    image: str
    last_image: str | None = None
    image_notes: tuple[str, ...] = ()
    model: str | None = None
    seconds: float | None = None
    size: str | None = None
    width: int | None = None
    height: int | None = None
    num_frames: int | None = None
    fps: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    guidance_scale_2: float | None = None
    flow_shift: float | None = None
    boundary_ratio: float | None = None
    negative_prompt: str | None = None
    seed: int | None = None
    resize_mode: ResizeMode = "crop"
    quality: str | None = None
    cache: dict[str, Any] | None = None
    loras: tuple[LoraAsk, ...] = ()
    strict: bool = False
    priority: int = 0
    deadline_s: float | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoPlan(JsonRecord):
    """Every decision that can be made before the first step. No None is left where the engine needs a value.

    guidance      classifier-free guidance scale; 1.0 or less means no unconditional branch
    guidance_2    scale of the low-noise expert, where `guidance` is above 1.0; None on a model with one expert
    boundary      share of the noise schedule below which the low-noise expert runs; None on a model with one expert
    flow_shift    the solver's shift; None keeps what the model directory says
    latent_shape  (C, F, H, W) of the latents the solver works on
    seed          the effective one, 0 to 2**64 - 1
    crf           H.264 constant rate factor
    batch_key     jobs with the same key may share a forward
    cache         what the step cache may do, in one spelling: see videoserve_cache.steps.request
    loras         adapters by digest and target, each once; none whose weight is 0
    adjustments   sentences: what was asked, what is used, why
    """

    records: ClassVar[dict[str, type[JsonRecord]]] = {"loras": AdapterUse}

    model: str
    prompt: str
    negative_prompt: str
    image: str
    last_image: str | None
    resize_mode: ResizeMode
    width: int
    height: int
    num_frames: int
    fps: int
    steps: int
    guidance: float
    guidance_2: float | None
    boundary: float | None
    flow_shift: float | None
    seed: int
    text_length: int
    latent_shape: tuple[int, ...]
    crf: int
    batch_key: str
    cache: dict[str, Any] = field(default_factory=lambda: {"quality": "exact"})
    loras: tuple[AdapterUse, ...] = ()
    adjustments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JsonRecord):
    """One unit of work. Immutable: what changes is JobState.

    request   the client's request as a dict (a remix starts from it); of a chat the API process that answers, `asker`
    plan      the plan as a dict; `VideoPlan.from_dict(job.plan)` for kind "video"
    deadline  unix seconds after which the result is not wanted
    work_s    estimated seconds of work, as known when the job was made; None before anything was measured
    """

    id: str
    kind: Literal["video", "chat"]
    tenant: str
    request: dict[str, Any]
    plan: dict[str, Any]
    created_at: float
    priority: int = 0
    deadline: float | None = None
    work_s: float | None = None
    webhook_url: str | None = None
    metadata: dict[str, Any] | None = None
    remixed_from: str | None = None
    siblings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(JsonRecord):
    """One stored result of a job: content address, size in bytes, media type."""

    sha256: str
    bytes: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(JsonRecord):
    """Something that happened to a job, in order. What the engine emits and what clients read.

    kind         data
    stage        {stage}
    progress     {progress: int 0..100, step, steps, eta_s}
    preview      {step, media_type, base64}
    checkpoint   {sha256, stage, step}     engine to worker only
    adjusted     {sentence}                something the engine had to change; joins the video's adjustments
    tokens       chat_types.TokensData     what a continuation of a chat has grown by
    done         {outputs: {variant: Output dict}, receipt: dict, twin?: dict}; `twin` is the receipt of jobs that asked
                 for the same and waited, with ANY_JOB for their id
    failed       {code, message, retry}
    """

    job_id: str
    kind: Literal["stage", "progress", "preview", "checkpoint", "adjusted", "tokens", "done", "failed"]
    data: dict[str, Any]
    seq: int = 0


Emit = Callable[[Event], None]


class Engine(Protocol):
    """What a worker drives, the same for video and chat. Not thread-safe: one thread calls it.

    `step` runs one unit of work (a stage, or one denoising step of one batch) and returns False when idle.
    After `cancel` the job emits nothing more and holds no memory once `cancel` has returned.
    `suspend` is a cancel that first saves the job's whole state: it returns the checkpoint from which another engine
    goes on bit for bit, or None when there is nothing to save yet. Both do nothing for a job the engine does not hold.
    `costs` are measured seconds for the broker to publish, by shape.
    """

    kind: str

    def load(self) -> None: ...
    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None: ...
    def step(self, emit: Emit) -> bool: ...
    def cancel(self, job_id: str) -> None: ...
    def suspend(self, job_id: str) -> dict[str, Any] | None: ...
    def wants(self) -> "Appetite | None": ...
    def costs(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Appetite:
    """Which further job an engine would take now: any at all, one of the same shape, or one more urgent.

    idle         nothing runs: the next job, whatever it is
    batch_key    a job of this shape would share the running forward
    before       a job whose rank (see `rank`) is below this would run first
    room         how many such jobs it would take at once
    """

    idle: bool
    batch_key: str | None = None
    before: float | None = None
    room: int = 1


def rank(created_at: float, priority: int, aging_s: float) -> float:
    """Order of service, lowest first: every point of priority is worth `aging_s` seconds of waiting.

    A waiting job therefore overtakes any later one of priority p after p * aging_s seconds: nothing starves.
    """
    return created_at - priority * aging_s
