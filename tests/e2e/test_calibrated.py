"""The demo model with a quality asked for: fewer forwards, and a receipt that says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests import picture_bytes
from videoserve.cli import app

pytestmark = pytest.mark.slow
STEPS = 20
SHAPE = ["--frames", "9", "--steps", f"{STEPS}", "--size", "96x96"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """run(command, …) -> the JSON it prints."""
    monkeypatch.setenv("VIDEOSERVE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("VIDEOSERVE_DEVICE", "cpu")

    def invoke(*words: str) -> Any:
        ended = CliRunner().invoke(app, [*words, "--json"])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.stdout)

    return invoke


def test_a_quality_is_met_with_fewer_forwards(run: Any, tmp_path: Path) -> None:
    photo, output = tmp_path / "a.png", tmp_path / "a.mp4"
    photo.write_bytes(picture_bytes.encode(picture_bytes.scene(96, 96), "PNG"))
    video = ["generate", str(photo), "pan left", "-o", str(output), "--seed", "3", *SHAPE]
    first = run(*video, "--cache", "balanced")
    assert first["steps"] == "R" * STEPS
    assert any("needs a calibration" in sentence for sentence in first["adjustments"])
    curve = run("cache", "calibrate", "--samples", "8", *SHAPE)
    (balanced,) = [row for row in curve if "balanced" in row["qualities"]]
    receipt = run(*video, "--cache", '{"quality": "balanced", "verify": true}')
    cache = receipt["cache"]
    assert receipt["adjustments"] == []
    assert receipt["steps"].count("R") < STEPS / 2
    assert receipt["steps"] == balanced["steps"]
    assert (cache["asked"]["quality"], cache["steps"], cache["steps_saved"]) == (
        "balanced",
        receipt["steps"],
        receipt["steps"].count("."),
    )
    assert cache["fidelity"]["mean"]["psnr_db"] > 30
