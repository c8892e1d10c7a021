"""A key of an adapter file, taken apart: which prefix its trainer writes, which module, and what of its change."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Expert = Literal["high", "low"]
# Longest first among those that begin alike. A family of layouts, and the expert that the prefix names.
PREFIXES: tuple[tuple[str, str, Expert | None], ...] = (
    ("base_model.model.diffusion_model.", "comfyui", None),
    ("base_model.model.transformer.", "diffusers", None),
    ("base_model.model.", "peft", None),
    ("model.diffusion_model.", "comfyui", None),
    ("diffusion_model.transformer_1.", "comfyui", "high"),
    ("diffusion_model.transformer_2.", "comfyui", "low"),
    ("diffusion_model.", "comfyui", None),
    ("transformer_2.", "diffusers", "low"),
    ("transformer.", "diffusers", None),
    ("unet.", "bare", None),
    ("lora_unet__", "kohya", None),
    ("lora_unet_", "kohya", None),
    ("lycoris_", "kohya", None),
    ("", "bare", None),
)
TEXT_ENCODER = ("text_encoder.", "text_encoder_2.", "lora_te_", "lora_te1_", "lora_te2_")
ROLES = {
    ".lora_A.default.weight": "a",
    ".lora_B.default.weight": "b",
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_down.weight": "a",
    ".lora_up.weight": "b",
    ".lora.down.weight": "a",
    ".lora.up.weight": "b",
    ".lora_down": "a",
    ".lora_up": "b",
    ".lora_A": "a",
    ".lora_B": "b",
    ".lora_B.bias": "b_bias",
    ".lora_B.default.bias": "b_bias",
    ".alpha": "alpha",
    ".diff": "diff",
    ".diff_b": "diff_b",
    ".diff_m": "diff_m",
    **{f".{name}": name for name in ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")},
    **{f".{name}": name for name in ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")},
    ".dora_scale": "dora",
    ".lora_magnitude_vector": "dora",
    ".lora_magnitude_vector.weight": "dora",
    ".lora_magnitude_vector.default.weight": "dora",
}
# What says more of a file than its prefix does.
SPELLINGS = {
    ".lora_A.default.weight": "diffsynth",
    ".lora_down": "distill",
    ".diff": "distill",
    ".diff_b": "distill",
    ".diff_m": "distill",
}
KINDS = {"lokr": "LoKr", "hada": "LoHa"}
LONGEST_ROLE = max(role.count(".") for role in ROLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """`name` is the module's, as the file has it; `role` what the tensor is of its change; None where no role fits."""

    text: str
    family: str
    expert: Expert | None
    name: str
    role: str | None
    spelling: str

    @property
    def of_text_encoder(self) -> bool:
        return self.text.startswith(TEXT_ENCODER)


def key_of(text: str) -> Key:
    prefix, family, expert = next(found for found in PREFIXES if text.startswith(found[0]))
    rest = text[len(prefix) :]
    spelling = spelled(rest)
    name = rest.removesuffix(spelling)
    return Key(text=text, family=family, expert=expert, name=name, role=ROLES.get(spelling), spelling=spelling)


def spelled(rest: str) -> str:
    """The longest end of a key that is a role's, or nothing."""
    parts = rest.split(".")
    ends = ("." + ".".join(parts[-count:]) for count in range(min(LONGEST_ROLE, len(parts) - 1), 0, -1))
    return next((end for end in ends if end in ROLES), "")


def layout(keys: Iterable[Key]) -> str:
    """What the layout of a file is called: by its prefix, or by what only one kind of trainer writes."""
    used = [key for key in keys if not key.of_text_encoder]
    roles = {key.role for key in used if key.role}
    spellings = {SPELLINGS[key.spelling] for key in used if key.spelling in SPELLINGS}
    families = sorted({key.family for key in used})
    named = sorted(spellings) if families == ["bare"] and spellings else families
    kinds = [name for start, name in KINDS.items() if any(role.startswith(start) for role in roles)]
    return " + ".join(named + kinds)
