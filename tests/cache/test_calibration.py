"""A calibration as a file: what was written or nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.toy_denoiser import even
from videoserve_cache.digest import canonical, digest
from videoserve_cache.steps.calibration import Calibration, UnusableCalibrationError
from videoserve_cache.steps.recorder import Recorder

Calibrate = Callable[..., Calibration]
KEY = b"this server's key"


def test_comes_back_as_it_was(tmp_path: Path, calibrate: Calibrate) -> None:
    made = calibrate(even(20, boundary=8))
    made.save(tmp_path / "deep" / "one.json", KEY)
    read = Calibration.load(tmp_path / "deep" / "one.json", KEY)
    assert read.digest == made.digest
    assert (read.subject, read.schedule, read.ratios) == (made.subject, made.schedule, made.ratios)
    assert np.array_equal(read.grams("output"), made.grams("output"))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["one.json"]


def test_a_change_of_any_number_or_subject_is_found(tmp_path: Path, calibrate: Calibrate) -> None:
    path = tmp_path / "one.json"
    calibrate(even(20)).save(path, KEY)
    whole = json.loads(path.read_text())

    def changed(*way: str | int, to: object) -> None:
        told = json.loads(json.dumps(whole))
        inner = told
        for name in way[:-1]:
            inner = inner[name]
        inner[way[-1]] = to
        path.write_text(json.dumps(told))
        with pytest.raises(UnusableCalibrationError, match=r"one\.json has been changed since it was measured"):
            Calibration.load(path, KEY)

    changed("measured", "samples", 1, "residual", 3, 4, to=0.25)
    changed("measured", "schedule", "sigmas", 3, to=0.9)
    changed("measured", "run_s", to=0.5)
    changed("subject", "model", to="another")
    changed("subject", "size", 0, to=33)
    changed("digest", to="0" * 64)


def test_a_forged_one_is_found(tmp_path: Path, calibrate: Calibrate) -> None:
    calibrate(even(20)).save(tmp_path / "one.json", b"another key")
    with pytest.raises(UnusableCalibrationError, match="not sealed with this server's key"):
        Calibration.load(tmp_path / "one.json", KEY)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "step-calibration", "version": 1, "subject": 3}'])
def test_what_is_no_calibration_is_said_to_be_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "one.json").write_text(content)
    with pytest.raises(UnusableCalibrationError, match=r"one\.json is not a calibration"):
        Calibration.load(tmp_path / "one.json", KEY)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"adapters": ()},
        {"solver": "heun"},
        {"steps": 30},
        {"size": (33, 96, 96)},
        {"dtype": "bfloat16"},
        {"guidance": (3.0, 2.0)},
    ],
)
def test_is_of_nothing_else(calibrate: Calibrate, change: dict[str, object]) -> None:
    made = calibrate(even(20))
    made.check(made.subject)
    other = replace(made.subject, **change)  # type: ignore[arg-type]
    assert other.digest != made.subject.digest
    with pytest.raises(UnusableCalibrationError, match=f"measured with another {next(iter(change))}"):
        made.check(other)


def test_ratios_are_those_of_the_residuals_norms(calibrate: Calibrate) -> None:
    recorder, latents = Recorder(), torch.ones(1, 2, 3)
    for scale in (4.0, 2.0, 3.0):
        recorder.step(latents, latents + scale)
    sample = recorder.finish(latents)
    # Six residuals of 4, in units of six ones squared.
    assert sample.residual[0, 0] == pytest.approx(16.0)
    made = Calibration(
        subject=calibrate(even(3)).subject, schedule=even(3), samples=(sample,), run_s=1.0, skip_s=0.0, fixed_s=0.0
    )
    assert made.ratios == pytest.approx((1.0, 0.5, 1.5))


def test_canonical_bytes_tell_values_apart() -> None:
    values = [None, True, 1, 1.0, "1", b"1", [1], ["1"], [[1]], {"1": 1}, 0.0, -0.0, "", [], {}, [1, 2], ["12"], [12]]
    assert len({canonical(value) for value in values}) == len(values)
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})
    assert digest("one", 1, 3) != digest("one", 2, 3) != digest("other", 2, 3)
    with pytest.raises(TypeError, match="A set has no canonical bytes"):
        canonical({1})
