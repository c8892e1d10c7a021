"""A chat model as a directory in transformers' layout: config.json, safetensors, tokenizer.json."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from videoserve.text.deepseek_prompt import DeepseekPrompt
from videoserve.text.models.deepseek_v4_shape import FAMILY, V4Shape
from videoserve.text.shape import Shape, UnknownModelError
from videoserve.text.source import Source
from videoserve.text.vocabulary import Vocabulary


def read_directory(directory: Path) -> Source:
    """Weights under the names in the files. Raises UnknownModelError for what is missing or not served."""
    for name in ("config.json", "tokenizer.json"):
        if not (directory / name).is_file():
            raise UnknownModelError(f"The chat model {directory.name} has no {name}: it is not complete.")
    config = _json(directory / "config.json")
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UnknownModelError(f"The chat model {directory.name} has no *.safetensors: it is not complete.")
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= load_file(file)
    settings = _json(directory / "tokenizer_config.json")
    tokenizer = (directory / "tokenizer.json").read_text(encoding="utf-8")
    sparse = config.get("model_type") == FAMILY
    return Source(
        name=directory.name,
        shape=V4Shape.of_config(config) if sparse else Shape.of_config(config),
        weights=weights,
        pairs_in_halves=True,
        vocabulary=Vocabulary.of_json(
            tokenizer,
            size=config["vocab_size"],
            ends=_ends(directory, config),
            begin=_special(settings, "bos_token"),
            end=_special(settings, "eos_token"),
            template=_template(directory, settings),
            recipe=DeepseekPrompt(tokenizer) if sparse else None,
        ),
        files=(directory / "config.json", *files),
    )


def _ends(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    """Token ids that end a text: those of generation_config.json before those of the model."""
    ends = _json(directory / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, list) else (ends,)


def _template(directory: Path, settings: dict[str, Any]) -> str | None:
    own = directory / "chat_template.jinja"
    template = own.read_text(encoding="utf-8") if own.is_file() else settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template


def _special(settings: dict[str, Any], name: str) -> str:
    token = settings.get(name) or ""
    return token["content"] if isinstance(token, dict) else token


def _json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content
