"""The adapters that ship with the demo model are real files: they fit it, and their factor is one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from videoserve_lora.apart import check_apart
from videoserve_lora.canonical import opened
from videoserve_lora.norms import norms_of
from videoserve_lora.source import Source
from videoserve_lora.target import Target


@pytest.mark.parametrize("name", ["swirl", "sepia-fade"])
def test_a_demo_adapter_fits_the_demo_model(name: str, demo_model_dir: Path, tmp_path: Path) -> None:
    target = Target.of_directory(demo_model_dir)
    target = Target(shapes=target.shapes, two_experts=target.two_experts, norms=norms_of(demo_model_dir))
    path = demo_model_dir.parent / "loras" / f"{name}.safetensors"
    verdict = check_apart([Source(path=path)], target, tmp_path / "out")
    report: dict[str, Any] = verdict.report["parts"]["any"]
    assert verdict.report["layout"] == "diffusers"
    assert verdict.report["notes"] == []
    assert (report["modules"], report["ranks"], report["factor"]) == (60, {"16": 60}, [1.0, 1.0])
    assert all(0 < ratio < 0.5 for ratio in report["ratio"].values())
    assert set(report["ratio"]) == {"attn1", "attn2", "ffn"}
    theirs = load_file(path)
    with opened(tmp_path / "out") as adapter:
        for place, change in adapter.parts["any"].changes.items():
            a, b = (theirs[f"transformer.{place}.lora_{half}.weight"] for half in "AB")
            assert (torch.from_numpy(change.dense()) - b @ a).abs().max() < 1e-6
            assert change.norm() == pytest.approx(float((b @ a).norm()), rel=1e-4)
