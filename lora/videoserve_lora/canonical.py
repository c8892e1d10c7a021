"""The one form in which adapters are kept: diffusers' names, every tensor bit for bit as it came, alpha in float32.

`<part>.<module>.<what>` for changes and `<part>.<parameter>.diff` for full deltas. Nothing depends on the layout, the
order or the metadata of the file it came from, so the sha256 of the bytes tells adapters apart.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from videoserve_lora.adapter import Adapter, Part, PartName
from videoserve_lora.change import Change
from videoserve_lora.key import ROLES, spelled
from videoserve_lora.kinds import change_of
from videoserve_lora.limits import Limits
from videoserve_lora.stored import Stored
from videoserve_lora.tensor_file import TensorFile
from videoserve_lora.writer import Content, of_float, write

ABOUT = {"format": "videoserve-adapter-1"}
SUFFIXES = {"a": ".lora_A.weight", "b": ".lora_B.weight", "b_bias": ".lora_B.bias"}


def write_canonical(adapter: Adapter, path: Path) -> str:
    """Writes it, flushed to the disk, and returns its digest."""
    tensors: dict[str, Content] = {}
    for name, part in adapter.parts.items():
        for place, change in part.changes.items():
            tensors |= {f"{name}.{place}{end}": content for end, content in contents(change).items()}
        tensors |= {f"{name}.{parameter}.diff": stored.content() for parameter, stored in part.deltas.items()}
    return write(path, tensors, ABOUT)


def contents(change: Change) -> dict[str, Content]:
    """The tensors of a change, by what comes after the module's name."""
    tensors = {SUFFIXES.get(role, f".{role}"): stored.content() for role, stored in change.tensors.items()}
    return tensors if change.alpha is None else {**tensors, ".alpha": of_float(change.alpha)}


@contextmanager
def opened(path: Path) -> Iterator[Adapter]:
    """The adapter of a canonical file, which is open as long as the context. ValueError for another one."""
    with TensorFile(path, Limits(tensors=1 << 20, header_bytes=1 << 28, file_bytes=1 << 40)) as file:
        if file.metadata != ABOUT:
            raise ValueError(
                f"{path.name} is not of the form {ABOUT['format']}; adapters are read as they were stored."
            )
        changes: dict[PartName, dict[str, dict[str, Stored]]] = {}
        deltas: dict[PartName, dict[str, Stored]] = {}
        for key, entry in file.entries.items():
            part, _, rest = key.partition(".")
            name = cast(PartName, part)
            end = spelled(rest)
            place, stored = rest.removesuffix(end), Stored(file=file, entry=entry)
            if end == ".diff":
                deltas.setdefault(name, {})[place] = stored
            else:
                changes.setdefault(name, {}).setdefault(place, {})[ROLES[end]] = stored
        names = sorted({*changes, *deltas})
        yield Adapter(
            parts={
                name: Part(
                    changes={place: read(tensors) for place, tensors in changes.get(name, {}).items()},
                    deltas=deltas.get(name, {}),
                )
                for name in names
            }
        )


def read(tensors: Mapping[str, Stored]) -> Change:
    alpha = tensors.get("alpha")
    matrices = {role: stored for role, stored in tensors.items() if role != "alpha"}
    return change_of(matrices, None if alpha is None else float(alpha.floats()))
