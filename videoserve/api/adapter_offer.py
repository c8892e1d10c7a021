"""From the form of an upload to an offer: every field checked, the files with what is said of them."""

from typing import Final, Literal, cast

from videoserve.api.adapter_parts import AdapterParts
from videoserve.errors import InvalidField, NotFound
from videoserve.storage.adapter_names import check_name
from videoserve.storage.adapter_target import AdapterTarget
from videoserve.storage.adapters import Offer
from videoserve_lora.source import Expert, Source

TARGETS: Final = ("all", "high", "low")
STEPS_MAX: Final = 1000
WORDS: Final = {"true": True, "1": True, "false": False, "0": False}


def offer_of(parts: AdapterParts, target: AdapterTarget) -> Offer:
    """Raises InvalidField, and NotFound for another model than the one served."""
    name = one(parts, "name")
    if name is None:
        raise InvalidField("name", "name is missing.")
    check_name(name)
    if "file" not in parts.files:
        raise InvalidField("file", "file is missing: an adapter is a safetensors file, in the part file of a form.")
    base = one(parts, "base_model")
    if base not in (None, target.name):
        raise NotFound(f"There is no model {base[:80]!r} here; this server has {target.name}.", param="base_model")
    experts, alpha = experts_of(parts, target), alpha_of(parts)
    files = [parts.files[field] for field in experts]
    return Offer(
        name=name,
        sources=[
            Source(path=file.place, expert=expert, alpha=alpha)
            for file, expert in zip(files, experts.values(), strict=True)
        ],
        files=[file.told() for file in files],
        steps=steps_of(parts),
        allow_unused=frozenset(
            word.strip() for text in parts.texts.get("allow_unused", ()) for word in text.split(",")
        ),
        replace=flag(parts, "replace"),
    )


def experts_of(parts: AdapterParts, target: AdapterTarget) -> dict[str, Expert | None]:
    """Which expert each file is for, by its field."""
    said = one(parts, "target")
    if said not in (None, *TARGETS):
        raise InvalidField("target", f"target is {said[:80]!r}; it must be one of {', '.join(TARGETS)}.")
    if "file_low" in parts.files:
        if said is not None:
            raise InvalidField("target", f"target is {said!r}, but the files of a pair are for high and low noise.")
        return {"file": "high", "file_low": "low"}
    if said == "all":
        return {"file": "both" if target.target.two_experts else None}
    return {"file": cast(Literal["high", "low"] | None, said)}


def alpha_of(parts: AdapterParts) -> float | None:
    text = one(parts, "alpha")
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidField("alpha", f"alpha is {text!r:.80}; it must be a finite number above zero.") from None


def steps_of(parts: AdapterParts) -> int | None:
    text = one(parts, "steps")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= STEPS_MAX):
        raise InvalidField("steps", f"steps is {text!r:.80}; it must be a whole number from 1 to {STEPS_MAX}.")
    return int(text)


def flag(parts: AdapterParts, field: str) -> bool:
    text = one(parts, field)
    if text is not None and text.lower() not in WORDS:
        raise InvalidField(field, f"{field} is {text!r:.80}; it must be true or false.")
    return text is not None and WORDS[text.lower()]


def words(parts: AdapterParts, field: str) -> list[str]:
    """Of a field that may come several times, or once with commas."""
    return [word.strip() for text in parts.texts.get(field, ()) for word in text.split(",") if word.strip()]


def one(parts: AdapterParts, field: str) -> str | None:
    """The text of a field that may come once."""
    texts = parts.texts.get(field, ())
    if len(texts) > 1:
        raise InvalidField(field, f"{field} has {len(texts)} values; it takes one.")
    return texts[0] if texts else None
