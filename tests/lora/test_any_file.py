"""Whatever keys and shapes a file has: it is refused with a sentence, or every one of its keys is accounted for."""

from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from videoserve_lora.canonical import opened, write_canonical
from videoserve_lora.check import checked
from videoserve_lora.key import PREFIXES, ROLES
from videoserve_lora.names import native
from videoserve_lora.refused import Refused
from videoserve_lora.source import Source
from videoserve_lora.target import Target
from videoserve_lora.tensor_file import TensorFile

PLACES = ("blocks.0.attn1.to_q", "blocks.1.ffn.net.2", "blocks.0.norm2", "blocks.0.attn2.add_k_proj", "proj_out",
          "blocks.0.scale_shift_table", "patch_embedding", "blocks.7.attn1.to_q", "odd")  # fmt: skip
NAMES = sorted({name for place in PLACES for name in (place, native(place), native(place).replace(".", "_"))})
DIMS = st.sampled_from([1, 2, 3, 16, 24, 48, 72])
VALUES = st.sampled_from([1.0, 0.5, -1.0, 0.0, float("inf"), float("nan")])
TYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn])


# Modules of both models, with the outputs and inputs of their weights.
SOUND = {"blocks.0.attn1.to_q": (48, 48), "blocks.1.ffn.net.2": (48, 72), "proj_out": (64, 48)}


@st.composite
def files(draw: Any) -> dict[str, torch.Tensor]:
    """Sound changes, and in half of the files something that is anything."""
    file = {}
    kohya = draw(st.booleans())
    for place in draw(st.lists(st.sampled_from(sorted(SOUND)), unique=True)):
        name = f"lora_unet_{native(place).replace('.', '_')}" if kohya else f"diffusion_model.{native(place)}"
        (outputs, inputs), rank = SOUND[place], draw(st.integers(1, 4))
        file[f"{name}.lora_A.weight"] = torch.ones(rank, inputs).to(draw(TYPES))
        file[f"{name}.lora_B.weight"] = torch.ones(outputs, rank).to(draw(TYPES))
        if draw(st.booleans()):
            file[f"{name}.alpha"] = torch.tensor(draw(st.sampled_from([0.5, 2.0])))
    for _ in range(draw(st.integers(0, 2))):
        start, end = draw(st.sampled_from(PREFIXES))[0], draw(st.sampled_from([*ROLES, ".x", ""]))
        key = start + draw(st.sampled_from(NAMES)) + end
        file[key] = torch.full(draw(st.lists(DIMS, max_size=4)), draw(VALUES)).to(draw(TYPES))
    return file or {"x": torch.ones(1)}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(file=files(), model=st.sampled_from(["wan22-a14b", "wan22-ti2v"]))
def test_every_key_is_used_or_named(
    file: dict[str, torch.Tensor], model: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    save_file(file, path)
    refusal = outcome(path, "both" if targets[model].two_experts else None, targets[model], tmp_path)
    event("accepted" if refusal is None else "refused")
    if refusal:
        assert refusal.sentence.endswith(".")
        assert set(refusal.keys) <= set(file)


def outcome(path: Path, expert: Any, target: Target, tmp_path: Path) -> Refused | None:
    """The refusal of a file; None when it is accepted and all of it came through."""
    try:
        with checked([Source(path=path, expert=expert)], target, allow_unused=frozenset({"image"})) as found:
            parts = found.adapter.parts.values()
            used = {t.key for part in parts for change in part.changes.values() for t in change.tensors.values()}
            used |= {stored.key for part in parts for stored in part.deltas.values()}
            with TensorFile(path) as file:
                # An alpha is a number of the change, no tensor of it.
                assert set(file.entries) - used - set(found.report.unused) <= {k for k in file.entries if ".alpha" in k}
            digest = write_canonical(found.adapter, tmp_path / "canonical")
    except Refused as refused:
        return refused
    with opened(tmp_path / "canonical") as again:
        assert write_canonical(again, tmp_path / "again") == digest
    return None
