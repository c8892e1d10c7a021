"""From what a client asked to what the engine does: every choice that can be made before the first step."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from videoserve.errors import DeadlineUnreachable, InvalidField, NotFound
from videoserve.media.image import fit_adjustments
from videoserve.planning.adapters import adapter_uses, few_steps
from videoserve.planning.adjustments import Adjustments
from videoserve.planning.caching import EXACT, computed, settled
from videoserve.planning.card import ModelCard
from videoserve.planning.geometry import frame_size, frames_and_rate
from videoserve.planning.identity import OURS
from videoserve.planning.limits import check_pixels, check_ranges
from videoserve.planning.prompt import clean
from videoserve.planning.reach import check_budget, check_reach
from videoserve.types import AdapterUse, VideoPlan, VideoRequest

# H.264 constant rate factors; 0 would be lossless, which the High profile cannot hold.
QUALITY = {"low": 28, "medium": 23, "high": 18, "max": 12}
CRF_RANGE = (1, 51)


def plan_video(
    request: VideoRequest,
    card: ModelCard,
    image_size: tuple[int, int],
    *,
    random_seed: int,
    pixels_max: int | None = None,
) -> VideoPlan:
    """The plan for one video. `image_size` is (width, height) of the picture, `random_seed` used when none is asked.
    `pixels_max` is the limit of width × height × frames; None: as far as the ranges of the fields go.

    Raises NotFound for a model that `card` is not, InvalidField for what cannot be done, and for every change that a
    strict request would need.
    """
    if request.model not in (None, card.name):
        raise NotFound(f"There is no model {request.model!r} here; this server has {card.name}.", param="model")
    check_ranges(request)
    _check_last_image(request, card)
    adjustments = Adjustments(strict=request.strict)
    width, height = frame_size(request, card, image_size, adjustments)
    frames, fps = frames_and_rate(request, card, adjustments)
    if pixels_max is not None:
        check_pixels(request, (width, height), frames, pixels_max)
    guidance, guidance_2, boundary = _guidance(request, card, adjustments)
    negative = _negative_prompt(request, guidance, card, adjustments)
    prompt = _read_prompt("prompt", request.prompt, card, adjustments)
    steps = request.num_inference_steps or card.steps
    loras = adapter_uses(request.loras, card, adjustments)
    cache = _step_cache(request, adjustments)
    check_reach(cache, steps, card.blocks)
    seed = _seed(request.seed, random_seed, adjustments)
    for note in (*request.image_notes, *fit_adjustments(*image_size, width, height, request.resize_mode)):
        adjustments.note(note)
    return VideoPlan(
        model=card.name,
        prompt=prompt,
        negative_prompt=negative,
        image=request.image,
        last_image=request.last_image,
        resize_mode=request.resize_mode,
        width=width,
        height=height,
        num_frames=frames,
        fps=fps,
        steps=steps,
        guidance=guidance,
        guidance_2=guidance_2,
        boundary=boundary,
        flow_shift=request.flow_shift,
        seed=seed,
        text_length=card.text_length,
        latent_shape=(
            card.latent_channels,
            (frames - 1) // card.temporal_stride + 1,
            height // card.spatial_stride,
            width // card.spatial_stride,
        ),
        crf=_crf(request.quality),
        # All that must be equal for two jobs to go through one forward at every step.
        batch_key=(
            f"{card.name}:{width}x{height}x{frames}:s{steps}:f{request.flow_shift}:b{boundary}"
            f":g{int(guidance > 1)}:l{int(request.last_image is not None)}{_apart(cache)}{_bound(loras)}"
        ),
        cache=cache,
        loras=loras,
        adjustments=tuple(adjustments.sentences),
    )


def shape_key(plan: VideoPlan) -> str:
    """The key under which the engine publishes what a shape costs: size, frames, and 1 with guidance or 0 without."""
    return f"{plan.width}x{plan.height}x{plan.num_frames}:g{int(plan.guidance > 1)}"


def estimate(plan: VideoPlan, costs: Mapping[str, Mapping[str, float]]) -> float | None:
    """Seconds of work from measured `costs`, as in `costs_of`; None without any."""
    cost = costs_of(plan, costs)
    if cost is None:
        return None
    return cost["encode"] + computed(plan) * cost["step"] + cost["decode"] + cost["write"]


def costs_of(plan: VideoPlan, costs: Mapping[str, Mapping[str, float]]) -> dict[str, float] | None:
    """Encode, step, decode and write seconds from measured `costs` (shape key → the same); None without any.

    A shape that never ran is estimated from the measured one nearest in volume, in proportion to the volume, and its
    step to the number of branches.
    """
    if not costs:
        return None
    key = shape_key(plan)
    nearest = key if key in costs else min(costs, key=lambda known: abs(math.log(_volume(known) / _volume(key))))
    scale = _volume(key) / _volume(nearest)
    branches = (1 + key.endswith("1")) / (1 + nearest.endswith("1"))
    return {stage: cost * scale * (branches if stage == "step" else 1) for stage, cost in costs[nearest].items()}


def check_costs(plan: VideoPlan, costs: Mapping[str, Mapping[str, float]]) -> None:
    """Raises InvalidField for a time budget that no plan of the step cache meets, by `costs` as in `estimate`."""
    check_budget(plan.cache, plan.steps, costs.get(shape_key(plan)))


def check_deadline(deadline_s: float | None, estimate_s: float | None) -> None:
    """Raises DeadlineUnreachable when the work alone takes longer than the client will wait."""
    if deadline_s is not None and estimate_s is not None and estimate_s > deadline_s:
        raise DeadlineUnreachable(deadline_s, estimate_s)


def _volume(key: str) -> int:
    return math.prod(int(side) for side in key.partition(":")[0].split("x"))


def _check_last_image(request: VideoRequest, card: ModelCard) -> None:
    if request.last_image is not None and card.last_image == "never":
        raise InvalidField("last_image", f"last_image is given, but {card.name} continues from a first picture only.")
    if request.last_image is None and card.last_image == "required":
        raise InvalidField("last_image", f"last_image is missing: {card.name} goes from a first picture to a last one.")


def _guidance(
    request: VideoRequest, card: ModelCard, adjustments: Adjustments
) -> tuple[float, float | None, float | None]:
    """(guidance, guidance_2, boundary). The first scale alone decides whether there is guidance, as in diffusers."""
    guidance = card.guidance if request.guidance_scale is None else request.guidance_scale
    if card.experts == 1:
        for name in ("guidance_scale_2", "boundary_ratio"):
            if getattr(request, name) is not None:
                raise InvalidField(name, f"{name} is for models with two experts; {card.name} has one.")
        return guidance, None, None
    second = guidance if request.guidance_scale_2 is None else request.guidance_scale_2
    if guidance <= 1 < second:
        adjustments.change(
            "guidance_scale_2",
            f"guidance_scale_2 is {second:g}, which is not used: guidance_scale {guidance:g} turns guidance off for "
            f"both experts.",
        )
        second = guidance
    boundary = card.boundary_ratio if request.boundary_ratio is None else request.boundary_ratio
    return guidance, second, boundary


def _negative_prompt(request: VideoRequest, guidance: float, card: ModelCard, adjustments: Adjustments) -> str:
    if not request.negative_prompt:
        return ""
    if guidance <= 1:
        adjustments.change(
            "negative_prompt", f"negative_prompt is not used: guidance_scale {guidance:g} runs no negative pass."
        )
        return ""
    return _read_prompt("negative_prompt", request.negative_prompt, card, adjustments)


def _read_prompt(name: str, text: str, card: ModelCard, adjustments: Adjustments) -> str:
    try:
        cleaned = clean(text)
    except ValueError:
        raise InvalidField(name, f"{name} holds a character reference (&#…;) of thousands of digits.") from None
    tokens = card.count_tokens(cleaned)
    if tokens > card.text_length:
        adjustments.change(
            name,
            f"{name} is {tokens} tokens and the model reads {card.text_length}: "
            f"the last {tokens - card.text_length} are cut.",
        )
    return cleaned


def _seed(asked: int | None, random_seed: int, adjustments: Adjustments) -> int:
    if asked is None or asked == -1:
        said = "No seed is given" if asked is None else "seed is -1, which asks for a random one"
        adjustments.note(f"{said}: {random_seed} is used.")
        return random_seed
    return asked


def _step_cache(request: VideoRequest, adjustments: Adjustments) -> dict[str, Any]:
    """What the step cache may do; nothing beside an adapter that already leaves out most steps."""
    cache = settled(request.cache)
    few = few_steps(request.loras)
    if few is None or cache.get("quality") == "exact" or cache.get("policy") == "off":
        return cache
    adjustments.change(
        "cache",
        f"The step cache is off: the adapter {few.name} is made for {few.steps} steps, and none can be skipped.",
    )
    return EXACT | {name: value for name, value in cache.items() if name in OURS}


def _bound(loras: Sequence[AdapterUse]) -> str:
    """Only jobs with the same adapters share a forward."""
    return "".join(f":a{use.digest[:16]}*{use.weight!r}@{use.target}" for use in loras)


def _apart(cache: Mapping[str, Any]) -> str:
    """What keeps jobs of a policy that decides inside the forward from sharing one with others."""
    return ":cb" if cache.get("policy") == "first_blocks" else ""


def _crf(quality: str | None) -> int:
    if quality is None:
        return QUALITY["high"]
    if quality in QUALITY:
        return QUALITY[quality]
    low, high = CRF_RANGE
    if quality.isdecimal() and quality.isascii() and len(quality) < 4 and low <= int(quality) <= high:
        return int(quality)
    names = ", ".join(QUALITY)
    raise InvalidField(
        "quality", f"quality is {quality!r}; it is one of {names}, or an H.264 rate factor from {low} to {high}."
    )
