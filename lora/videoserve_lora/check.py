"""From files of unknown origin to an adapter that fits a model: every key is used, or named as what is wrong."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from videoserve_lora.adapter import Adapter, Part, PartName
from videoserve_lora.change import Change
from videoserve_lora.faults import Faults, count
from videoserve_lora.key import Key, key_of, layout
from videoserve_lora.kinds import change_of, incomplete, misshapen, windowed
from videoserve_lora.limits import Limits
from videoserve_lora.refused import Refused, listed
from videoserve_lora.report import Report, report
from videoserve_lora.sorting import Place, Sorted, Sorting
from videoserve_lora.source import Source
from videoserve_lora.stored import Stored
from videoserve_lora.target import Target
from videoserve_lora.tensor_file import TensorFile

# What a file may hold beyond the model, if its sender agrees that it is left out.
GROUPS = {
    "image": "what reads a picture's CLIP embedding (Wan 2.1 I2V), which this model does not have",
    "text_encoder": "a text encoder, which adapters do not change here",
}
# As PEFT's configuration has it, which diffusers writes into the metadata.
CLAIMED = re.compile(r'lora_alpha"\s*:\s*(\d{1,6}(?:\.\d{1,6})?)')
# Well within float32, also when several adapters are added up.
LARGEST = 1e30
# Modules whose input is as wide as the model.
WIDE = re.compile(r"blocks\.\d+\.(attn1\.to_(q|k|v|out\.0)|attn2\.to_(q|out\.0)|ffn\.net\.0\.proj)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """An adapter that fits, and what is to be said of it."""

    adapter: Adapter
    report: Report


@contextmanager
def checked(
    sources: Sequence[Source],
    target: Target,
    *,
    allow_unused: frozenset[str] = frozenset(),
    limits: Limits | None = None,
) -> Iterator[Checked]:
    """The adapter of one file, or of the two of a pair; the files are open as long as the context. Refused.

    allow_unused  of "image" and "text_encoder": keys that this model has no use for and that may be left out.
    """
    bounds = limits or Limits()
    with ExitStack() as stack:
        files = [stack.enter_context(TensorFile(source.path, bounds)) for source in sources]
        keys = [[key_of(text) for text in file.entries] for file in files]
        sorted_keys = sort(list(zip(sources, files, keys, strict=True)), target, allow_unused)
        adapter = fitted(sorted_keys, target, bounds, given_alpha(sources, keys))
        refuse_infinite(adapter)
        name = " and ".join(dict.fromkeys(layout(of) for of in keys))
        notes = [note for file in files if (note := unheard(file, adapter))]
        yield Checked(adapter=adapter, report=report(adapter, target, name, sorted_keys.unused, notes))


def sort(
    opened: Sequence[tuple[Source, TensorFile, list[Key]]], target: Target, allow_unused: frozenset[str]
) -> Sorted:
    """Every key of the files in its place. Refused, with all that have none."""
    if unknown := sorted(allow_unused - set(GROUPS)):
        raise Refused(f"allow_unused has {', '.join(map(ascii, unknown))}; {' and '.join(GROUPS)} are allowed.")
    faults = Faults()
    sorting = Sorting(target, faults)
    for source, file, keys in opened:
        sorting.leave_out("text_encoder", [key.text for key in keys if key.of_text_encoder])
        used = [key for key in keys if not key.of_text_encoder]
        stored = [Stored(file=file, entry=file.entries[key.text]) for key in used]
        sorting.take(zip(used, source.parts(used, target), stored, strict=True))
    refuse_other_width(sorting.sorted.changes, target)
    faults.refuse()
    for group, texts in sorting.sorted.unused.items():
        if texts and group not in allow_unused:
            raise Refused(
                f"{count(len(texts))} of the file are for {GROUPS[group]}; allow_unused={group} leaves them out: "
                f"{listed(texts)}.",
                texts,
            )
    if not sorting.sorted.changes and not sorting.sorted.deltas:
        raise Refused("The file changes no module of this model.")
    return sorting.sorted


def given_alpha(sources: Sequence[Source], keys: Sequence[Sequence[Key]]) -> float | None:
    """The alpha of modules that have none in the file. Refused where it would have to be guessed."""
    given = {source.alpha for source in sources} - {None}
    if len(given) > 1:
        raise Refused("The two files of a pair were given different alphas; one is accepted.")
    for alpha in given:
        if alpha is not None and not (math.isfinite(alpha) and alpha > 0):
            raise Refused(f"The given alpha is {alpha}; it must be a finite number above zero.")
    for of in keys:
        bare = any(key.family == "peft" and key.role == "a" for key in of)
        if bare and not given and not any(key.role == "alpha" for key in of):
            raise Refused("This is a file as PEFT writes it: say the lora_alpha in the adapter_config.json beside it.")
    return next(iter(given), None)


def fitted(found: Sorted, target: Target, limits: Limits, alpha: float | None) -> Adapter:
    """The adapter that the sorted tensors make. Refused, with all that do not fit."""
    faults = Faults()
    changes: dict[PartName, dict[str, Change]] = {}
    deltas: dict[PartName, dict[str, Stored]] = {}
    for (part, parameter), stored in found.deltas.items():
        deltas.setdefault(part, {})[parameter] = stored
    for (part, place), tensors in found.changes.items():
        change = one_change(tensors, target.shapes[f"{place}.weight"], limits, alpha, faults)
        clashes = clashing(tensors, place, deltas.get(part, {}))
        if clashes:
            faults.add("are for the same of one module", clashes)
        elif change:
            changes.setdefault(part, {})[place] = change
    faults.refuse()
    names = sorted({*changes, *deltas})
    if "any" in names and len(names) > 1:
        raise Refused("One file of the pair is for both experts, and the other for one of them.")
    return Adapter(parts={name: Part(changes=changes.get(name, {}), deltas=deltas.get(name, {})) for name in names})


def clashing(tensors: Mapping[str, Stored], place: str, deltas: Mapping[str, Stored]) -> list[str]:
    """The keys of a module that also has a full delta of what they change."""
    again = [deltas.get(f"{place}.weight"), deltas.get(f"{place}.bias") if "b_bias" in tensors else None]
    twice = [stored.key for stored in again if stored]
    return [*twice, *(stored.key for stored in tensors.values())] if twice else []


def one_change(
    tensors: Mapping[str, Stored], weight: tuple[int, ...], limits: Limits, given: float | None, faults: Faults
) -> Change | None:
    """The change of one module; None after a fault."""
    alpha = tensors.get("alpha")
    matrices = {role: stored for role, stored in tensors.items() if role != "alpha"}
    keys = [stored.key for stored in tensors.values()]
    if why := (incomplete(matrices) if matrices else "are an alpha without a change") or misshapen(matrices, weight):
        faults.add(why, keys)
        return None
    matrices = windowed(matrices, weight)
    # Both factors of a LoKr in full: what stands in alpha is not even read.
    if change_of(matrices, 1.0).alpha is None:
        return change_of(matrices, None)
    value = given
    if alpha:
        if alpha.entry.numbers != 1:
            faults.add("are an alpha of more than one number", [alpha.key])
            return None
        value = float(alpha.floats().reshape(-1)[0])
        if not (math.isfinite(value) and value > 0):
            faults.add(f"are an alpha of {value:g}; it must be a finite number above zero", [alpha.key])
    change = change_of(matrices, value)
    if change.rank > limits.rank:
        faults.add(f"are of rank {change.rank}; at most {limits.rank} is accepted", keys)
    return change


def refuse_other_width(changes: Mapping[Place, Mapping[str, Stored]], target: Target) -> None:
    """Refused when the file is for a model of another width: one sentence for what else would be a fault per module."""
    there = {place: width_of(tensors) for place, tensors in changes.items() if WIDE.fullmatch(place[1])}
    widths = {width for width in there.values() if width is not None}
    if len(widths) == 1 and target.width not in widths:
        keys = sorted(stored.key for tensors in changes.values() for stored in tensors.values())
        raise Refused(f"The file was trained for width {widths.pop()}; this model has {target.width}.", keys)


def width_of(tensors: Mapping[str, Stored]) -> int | None:
    for role in ("a", "hada_w1_b"):
        if role in tensors and len(tensors[role].shape) == 2:
            return tensors[role].shape[1]
    return None


def unheard(file: TensorFile, adapter: Adapter) -> str | None:
    """What to say of an alpha that stands in a file's metadata alone: it may be meant, and is not applied."""
    found = next((match for text in file.metadata.values() if (match := CLAIMED.search(text))), None)
    changes = [change for part in adapter.parts.values() for change in part.changes.values()]
    if found is None or all(change.alpha is not None or change.rank == float(found[1]) for change in changes):
        return None
    return f"The file's metadata has the alpha {found[1]}, which is not applied; say it as alpha if it is meant."


def refuse_infinite(adapter: Adapter) -> None:
    """Refused, with every tensor that has a NaN or an Inf, or would have one with its factor."""
    faults = Faults()
    for part in adapter.parts.values():
        scaled = [(tensor, change.factor) for change in part.changes.values() for tensor in change.tensors.values()]
        largest = {tensor.key: (tensor.largest(), factor) for tensor, factor in scaled}
        largest |= {tensor.key: (tensor.largest(), 1.0) for tensor in part.deltas.values()}
        infinite = [key for key, (most, _) in largest.items() if not math.isfinite(most)]
        faults.add("have a NaN or an Inf", infinite)
        # Which of its matrices a kind scales does not matter: no sound adapter comes near.
        beyond = [key for key, (most, factor) in largest.items() if LARGEST < most * factor < math.inf]
        faults.add("are too large for their alpha", beyond)
    faults.refuse()
