"""An adapter as a file for other programs: in diffusers' layout, or in ComfyUI's."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from videoserve_lora.adapter import Adapter, Part, PartName
from videoserve_lora.canonical import contents
from videoserve_lora.change import Change
from videoserve_lora.dtypes import Floats
from videoserve_lora.names import native
from videoserve_lora.stored import Stored
from videoserve_lora.writer import Content, of_floats, write

Layout = Literal["diffusers", "comfyui"]
COMPONENTS: Mapping[PartName, str] = {"any": "transformer", "high": "transformer", "low": "transformer_2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The files that were written, and the keys in them for which diffusers would refuse the file as it stands."""

    files: tuple[Path, ...]
    unread: tuple[str, ...]


def convert(adapter: Adapter, out: Path, layout: Layout) -> Converted:
    """Writes `out`; for ComfyUI a pair is two files, `out` with -high and -low before its suffix.

    Read again, ComfyUI's file is the same adapter bit for bit, but for biases beside B, which become full deltas. In
    diffusers' alpha is folded into B, in float32, and LoHa and LoKr become plain low-rank changes, or full deltas
    where they are none.
    """
    if layout == "diffusers":
        tensors = dict(pair for name, part in adapter.parts.items() for pair in for_diffusers(COMPONENTS[name], part))
        write(out, tensors, {"format": "pt"})
        return Converted(files=(out,), unread=tuple(sorted(key for key in tensors if "lora" not in key)))
    files = []
    for name, part in adapter.parts.items():
        files.append(out if len(adapter.parts) == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}"))
        write(files[-1], dict(for_comfyui(part)), {"format": "pt"})
    return Converted(files=tuple(files), unread=())


def for_comfyui(part: Part) -> Iterator[tuple[str, Content]]:
    for place, change in part.changes.items():
        for end, content in for_comfyui_change(change).items():
            yield f"diffusion_model.{native(place)}{end}", content
    for parameter, stored in part.deltas.items():
        yield f"diffusion_model.{delta_name(parameter, native_names=True)}", stored.content()


def for_comfyui_change(change: Change) -> dict[str, Content]:
    tensors = contents(change)
    bias = tensors.pop(".lora_B.bias", None)
    return {**tensors, ".diff_b": of_floats(lambda: scaled_bias(change), bias.shape)} if bias else tensors


def for_diffusers(component: str, part: Part) -> Iterator[tuple[str, Content]]:
    for place, change in part.changes.items():
        for end, content in plain(change).items():
            yield f"{component}.{place}{end}", content
    for parameter, stored in part.deltas.items():
        yield f"{component}.{delta_name(parameter, native_names=False)}", stored.content()


def delta_name(parameter: str, *, native_names: bool) -> str:
    """A full delta's key: of a weight or a table `.diff`, of a bias `.diff_b`."""
    place, _, what = parameter.rpartition(".")
    if what not in ("weight", "bias"):
        place, what = parameter, "weight"
    return f"{native(place) if native_names else place}{'.diff_b' if what == 'bias' else '.diff'}"


def plain(change: Change) -> dict[str, Content]:
    """A change without alpha, as a plain low-rank one where it is one."""
    rank, (outputs, inputs) = change.low_rank, change.shape
    if rank is None:
        return {".diff": of_floats(change.dense, (outputs, inputs))}
    if change.kind == "LoRA" and change.factor == 1:
        return {end: content for end, content in contents(change).items() if end != ".alpha"}
    bias = change.tensors.get("b_bias")
    scaled = {".lora_B.bias": of_floats(lambda: scaled_bias(change), bias.shape)} if bias else {}
    a = change.tensors.get("a")
    return {
        ".lora_A.weight": a.content() if a else of_floats(lambda: change.factors()[0], (rank, inputs)),
        ".lora_B.weight": of_floats(lambda: change.factors()[1], shape_of_b(change, outputs, rank)),
        **scaled,
    }


def shape_of_b(change: Change, outputs: int, rank: int) -> tuple[int, ...]:
    """A convolution's B keeps the axes of its window of one."""
    stored: Stored | None = change.tensors.get("b")
    return stored.shape if stored else (outputs, rank)


def scaled_bias(change: Change) -> Floats:
    return change.tensors["b_bias"].floats() * np.float32(change.factor)
