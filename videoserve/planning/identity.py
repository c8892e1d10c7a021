"""What an entry of the cache is told apart by: the fields of a plan that it depends on, and what it is computed by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from videoserve.types import JsonRecord
from videoserve_cache.digest import digest
from videoserve_cache.steps.parse import parse

Kind = Literal["text_emb", "img_clip", "img_cond", "boundary", "final_latent", "result"]
KINDS: Final[tuple[Kind, ...]] = ("text_emb", "img_clip", "img_cond", "boundary", "final_latent", "result")
# Another number, and nothing that was kept before is found any more.
VERSION: Final = 3

# Those that hold what denoising made.
DENOISED: Final[tuple[Kind, ...]] = ("boundary", "final_latent", "result")

KEY, TEXT, LATE, LENGTH, EARLY, AFTER, NOTHING = "K", "T", "L", "N", "E", "a", "-"
# What each field of a VideoPlan is to each of KINDS, in their order.
#   K  part of the key
#   T  a text, which has an entry of its own
#   L  part of the key once the low-noise expert has taken a step
#   E  part of the key as far as it is for the high-noise expert, whole once the low-noise one has taken a step
#   N  a length: the entry of a longer video begins with that of a shorter one
#   a  comes after the entry, or is what the entry is chosen by
#   -  has nothing to do with it
PLAN: Final[dict[str, str]] = {
    # Weights are told apart by what is in them.
    "model": "------",
    "prompt": "T--KKK",
    "negative_prompt": "T--KKK",
    "image": "-KKKKK",
    "last_image": "-KKKKK",
    "resize_mode": "-KKKKK",
    "width": "-KKKKK",
    "height": "-KKKKK",
    "num_frames": "--NKKK",
    "fps": "---aaK",
    "steps": "aaaKKK",
    "guidance": "aaaKKK",
    "guidance_2": "aaaLKK",
    "boundary": "aaaKKK",
    "flow_shift": "aaaKKK",
    "seed": "aaaKKK",
    "text_length": "K--KKK",
    "latent_shape": "--aKKK",
    "crf": "---aaK",
    "cache": "aaaKKK",
    "loras": "---EKK",
    # How jobs are put together, and what is said of them.
    "batch_key": "------",
    "adjustments": "------",
}
# Which fields of the plan a field of a VideoRequest decides; none: it says nothing about the video.
REQUEST: Final[dict[str, tuple[str, ...]]] = {
    "prompt": ("prompt",),
    "image": ("image", "width", "height"),
    "last_image": ("last_image",),
    "image_notes": (),
    "model": (),
    "seconds": ("num_frames", "fps"),
    "size": ("width", "height"),
    "width": ("width",),
    "height": ("height",),
    "num_frames": ("num_frames",),
    "fps": ("fps", "num_frames"),
    "num_inference_steps": ("steps",),
    "guidance_scale": ("guidance", "guidance_2"),
    "guidance_scale_2": ("guidance_2",),
    "flow_shift": ("flow_shift",),
    "boundary_ratio": ("boundary",),
    "negative_prompt": ("negative_prompt",),
    "seed": ("seed",),
    "resize_mode": ("resize_mode",),
    "quality": ("crf",),
    "cache": ("cache",),
    "loras": ("loras",),
    "strict": (),
    "priority": (),
    "deadline_s": (),
    "user": (),
}
# Of the field `cache`, what says how to use what is kept rather than what to compute.
OURS: Final = ("near", "reuse")
# In what a video may differ from one that it begins with.
FREE: Final = (
    "prompt",
    "negative_prompt",
    "seed",
    "steps",
    "guidance",
    "guidance_2",
    "boundary",
    "flow_shift",
    "cache",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker(JsonRecord):
    """What computes: equal makers give equal bits for equal plans. Digests, of a model, its code and its device.

    text, clip, vae   of the encoders
    guided, plain     of everything that makes a video, with guidance and without it, the plan of the ranks included
    """

    text: str
    clip: str
    vae: str
    guided: str
    plain: str

    def of(self, kind: Kind, plan: Mapping[str, Any]) -> str:
        """The digest of what makes an entry of this kind."""
        encoders = {"text_emb": self.text, "img_clip": self.clip, "img_cond": self.vae}
        return encoders.get(kind, self.guided if plan["guidance"] > 1 else self.plain)


def identify(kind: Kind, plan: Mapping[str, Any], maker: Maker, tenant: str, **more: Any) -> str | None:
    """The digest of an entry of one tenant; `plan` is VideoPlan.to_dict(), `more` what else there is to the entry:
    the `text` of a text_emb, `low` for a boundary behind the expert switch.

    None for one that cannot be kept: a field is not classified, or what is computed depends on more than the request.
    """
    if not plan.keys() <= PLAN.keys():
        return None
    asked = policy_of(plan.get("cache"), verify=kind == "result")
    if kind in DENOISED and parse(asked).calibrated:
        return None
    fields = {name: plan[name] for name in keyed(kind, plan, low=more.get("low", False))}
    if "cache" in fields:
        fields["cache"] = asked
    if kind == "boundary" and not more.get("low", False):
        fields["loras"] = [{**use, "target": "high"} for use in plan["loras"] if use["target"] != "low"]
    return digest(kind, VERSION, {"maker": maker.of(kind, plan), "tenant": tenant, "plan": fields, **more})


def twin_of(plan: Mapping[str, Any], tenant: str, *, strict: bool) -> str | None:
    """What jobs of a server have in common that get the same video from whichever worker, and are told the same of it;
    None as in `identify`. `strict` is the request's: without a calibration that others do not need, it fails."""
    asked = plan.get("cache") or {}
    if not plan.keys() <= PLAN.keys() or asked.get("near") is not None:
        return None
    # One receipt goes to all of them, and says what was asked and changed.
    fields = {name: plan[name] for name in (*keyed("result", plan), "adjustments")} | {"cache": asked}
    strict = strict and parse(policy_of(asked, verify=True)).calibrated
    return digest("twin", VERSION, {"model": plan["model"], "tenant": tenant, "plan": fields, "strict": strict})


def scope_of(plan: Mapping[str, Any], maker: Maker, tenant: str) -> str | None:
    """What videos have in common of which one may begin with another: all but text, noise and how it is denoised."""
    if not plan.keys() <= PLAN.keys():
        return None
    fields = {name: plan[name] for name in keyed("final_latent", plan) if name not in FREE}
    return digest("scope", VERSION, {"maker": maker.guided, "tenant": tenant, "plan": fields})


def repeatable(request: Mapping[str, Any]) -> bool:
    """Whether the same request (VideoRequest.to_dict()) asks for the same video again: it names its seed."""
    return request.get("seed") not in (None, -1)


def keyed(kind: Kind, plan: Mapping[str, Any], *, low: bool = False) -> list[str]:
    """The names of the plan's fields that are in a key. `low`: the low-noise expert has taken a step."""
    letters = {KEY, EARLY}
    if low:
        letters.add(LATE)
    # A last picture is somewhere else in a longer video, and a single frame is encoded in a piece of its own.
    if plan["last_image"] is not None or plan["num_frames"] == 1:
        letters.add(LENGTH)
    return [name for name in plan if PLAN[name][KINDS.index(kind)] in letters]


def policy_of(asked: Mapping[str, Any] | None, *, verify: bool) -> dict[str, Any]:
    """What a plan's field `cache` says about what is computed; with `verify` also about what is measured of it."""
    apart = OURS if verify else (*OURS, "verify")
    told = {name: value for name, value in (asked or {}).items() if name not in apart}
    # By identity: 0 equals False, and says something.
    told = {name: value for name, value in told.items() if value is not None and value is not False}
    return told if told.keys() - {"verify"} else told | {"quality": "exact"}
