"""What goes over the wire, as pydantic models: they check requests and describe everything in /openapi.json."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator
from pydantic_core import from_json

from videoserve.planning import caching
from videoserve.planning.adapters import SCALE_MAX
from videoserve.planning.limits import LIMITS
from videoserve.planning.plan import QUALITY
from videoserve.types import ExpertTarget, VideoRequest

N_MAX = 10
LORAS_MAX = 8
PROMPT_MAX = 32_000


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("it must be a number, not true or false")
    return value


def _json_text(value: Any) -> Any:
    """Forms hold objects and lists as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return from_json(value, allow_inf_nan=False)
    return value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _range(name: str) -> Any:
    limit = LIMITS[name]
    return Field(ge=limit.low, le=limit.high)


NUMBER = BeforeValidator(_no_bool)
Words = Annotated[str, StringConstraints(max_length=PROMPT_MAX)]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]
Picture = Annotated[
    str | dict[str, Any],
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "description": "In a form: the file. In JSON: a data URL of the picture."},
                {
                    "type": "object",
                    "properties": {"image_url": {"type": "string", "description": "A data URL."}},
                    "required": ["image_url"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
Cache = Annotated[
    dict[str, Any],
    # The last one is the first.
    BeforeValidator(caching.spelled),
    BeforeValidator(_json_text),
    WithJsonSchema(caching.schema()),
]
SECONDS_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": LIMITS["seconds"].low, "maximum": LIMITS["seconds"].high},
        {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]+)?$"},
    ]
}
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR42mOM"
    "6jnBwMDAxMDAwMDAAAAT5AGyDj9QAQAAAABJRU5ErkJggg=="
)


class Lora(BaseModel):
    """An adapter of a request, by its id (or digest) or by its name or alias; name@2 is its second version."""

    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    scale: Annotated[float, NUMBER, WithJsonSchema({"type": "number", "minimum": -SCALE_MAX, "maximum": SCALE_MAX})] = (
        Field(default=1.0, description="0 is the model without it.")
    )
    target: ExpertTarget = Field(default="all", description="Which experts of a model with two; high or low noise.")

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if (self.id is None) == (self.name is None):
            raise ValueError("it must have an id or a name, and not both")
        return self

    @property
    def reference(self) -> str:
        return self.id or self.name or ""


class Options(BaseModel):
    """What may be said about a video besides its pictures. Everything left out is the model's own choice."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = Field(default=None, description="A name from /v1/models; the one served when left out.")
    seconds: Annotated[float, _range("seconds"), NUMBER, WithJsonSchema(SECONDS_SCHEMA)] | None = Field(
        default=None, description="Length; with num_frames it fixes the frame rate.", examples=["4", 2.125]
    )
    size: str | None = Field(default=None, description="WIDTHxHEIGHT in pixels.", examples=["128x128"])
    width: Annotated[int, _range("width"), NUMBER] | None = Field(default=None, description="Goes with height.")
    height: Annotated[int, _range("height"), NUMBER] | None = Field(default=None, description="Goes with width.")
    num_frames: Annotated[int, _range("num_frames"), NUMBER] | None = Field(default=None, description="4k + 1 on Wan.")
    fps: Annotated[int, _range("fps"), NUMBER] | None = Field(default=None, description="Frames per second.")
    num_inference_steps: Annotated[int, _range("num_inference_steps"), NUMBER] | None = None
    guidance_scale: Annotated[float, _range("guidance_scale"), NUMBER] | None = Field(
        default=None, description="1 or less runs no negative pass."
    )
    guidance_scale_2: Annotated[float, _range("guidance_scale_2"), NUMBER] | None = Field(
        default=None, description="For the low-noise expert of models with two; guidance_scale when left out."
    )
    flow_shift: Annotated[float, _range("flow_shift"), NUMBER] | None = None
    boundary_ratio: Annotated[float, _range("boundary_ratio"), NUMBER] | None = Field(
        default=None, description="Share of the noise schedule below which the low-noise expert works."
    )
    negative_prompt: Words | None = None
    seed: Annotated[int, _range("seed"), NUMBER] | None = Field(
        default=None, description="0 to 2^64 - 1; -1 or null for a random one, which the video's `seed` tells."
    )
    n: Annotated[int, Field(ge=1, le=N_MAX), NUMBER] = Field(
        default=1, description="How many videos: jobs of their own with the seeds seed, seed + 1, …"
    )
    num_outputs_per_prompt: Annotated[int, Field(ge=1, le=N_MAX), NUMBER] | None = Field(
        default=None, description="Another name of n."
    )
    resize_mode: Literal["crop", "pad", "stretch"] = Field(
        default="crop", description="What becomes of a picture of another aspect than the video."
    )
    quality: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        default=None,
        description="Of the compression: "
        + ", ".join(f"{name} (crf {crf})" for name, crf in QUALITY.items())
        + ", or an H.264 rate factor from 1, the best, to 51.",
        examples=["high", 20],
    )
    strict: bool = Field(default=False, description="Refuse what does not fit instead of adjusting it.")
    priority: Annotated[int, _range("priority"), NUMBER] = Field(default=0, description="Higher runs earlier.")
    deadline_s: Annotated[float, _range("deadline_s"), NUMBER] | None = Field(
        default=None, description="Seconds after which the video is of no use; refused when queue and work take longer."
    )
    webhook_url: Annotated[str, StringConstraints(max_length=2048)] | None = Field(
        default=None, description="Gets video.completed or video.failed, signed."
    )
    metadata: Annotated[Metadata | None, BeforeValidator(_json_text)] = Field(
        default=None, description="Up to 16 texts to keep with the video."
    )
    user: Annotated[str, StringConstraints(max_length=256)] | None = Field(
        default=None, description="Your name for whoever asked; kept with the video."
    )
    lora: Annotated[list[Lora] | None, BeforeValidator(_json_text)] = Field(
        default=None,
        max_length=LORAS_MAX,
        description="Adapters from /v1/loras. One that is named several times has the sum of its scales.",
        examples=[[{"name": "swirl", "scale": 0.8}]],
    )
    cache: Cache | None = Field(
        default=None,
        description="Which denoising steps may be forecast instead of computed: a quality, a time budget or a policy. "
        "Left out: none.",
        examples=["balanced", {"policy": "latent", "threshold": 0.1}],
    )
    extra_params: Annotated[dict[str, Any] | None, BeforeValidator(_json_text)] = Field(
        default=None, description="Further fields of this list, for clients that can send no others."
    )


class CreateVideo(Options):
    """A picture and what shall happen in it."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"prompt": "the camera pans slowly to the left", "input_reference": PICTURE, "seed": 7}]
        },
    )

    prompt: Words = Field(description="May be empty.")
    input_reference: Picture | None = Field(default=None, description="The first frame.")
    last_image: Picture | None = Field(default=None, description="The last frame, for models that take one.")
    image_reference: Picture | None = Field(default=None, description="Another name of input_reference.")
    reference_url: str | None = Field(default=None, description="Another name of input_reference.")


class RemixVideo(Options):
    """What shall be other than in an earlier video; the picture, and all that is left out, stays."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"prompt": "zoom out instead"}]})

    prompt: Words


class VideoError(BaseModel):
    code: str
    message: str


class Video(BaseModel):
    """A job and, once it is completed, where its results are from."""

    id: str
    object: Literal["video"]
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int = Field(ge=0, le=100, description="Share of the work that the device has finished.")
    prompt: str
    size: str = Field(description="WIDTHxHEIGHT, the effective one.")
    seconds: str
    created_at: int
    completed_at: int | None
    expires_at: int | None
    remixed_from_video_id: str | None
    error: VideoError | None
    stage: Literal["queued", "encode", "denoise", "decode", "write", "done"]
    eta_s: float | None = Field(description="Estimated seconds to the end; null where nothing was measured yet.")
    queue_position: int | None = Field(description="1 for the next to run.")
    fps: int
    num_frames: int
    width: int
    height: int
    seed: int = Field(description="The effective one.")
    adjustments: list[str] = Field(description="What was asked, what is used, why.")
    receipt: dict[str, Any] | None
    metadata: dict[str, str] | None
    user: str | None
    siblings: list[str] = Field(description="The other videos of the same request with n > 1.")


class VideoList(BaseModel):
    object: Literal["list"]
    data: list[Video]
    has_more: bool
    first_id: str | None
    last_id: str | None
    adjustments: list[str] = Field(description="What was asked, what is used, why.")


class DeletedVideo(BaseModel):
    id: str
    object: Literal["video.deleted"]
    deleted: Literal[True]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str
    keys: list[str] | None = Field(default=None, description="Of a refused adapter: those of its keys at fault.")


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


# What a request keeps of its options; the others are about the job or other names.
KEPT = frozenset(VideoRequest.__dataclass_fields__) & frozenset(CreateVideo.model_fields) - {"last_image"}
