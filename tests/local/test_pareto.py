"""The comparison of `videoserve bench cache`: what it measures on, what it makes of it, and that it goes on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from videoserve.local.pareto import measure, rows
from videoserve.local.pareto.cases import calibration, half_of, held_out
from videoserve.local.pareto.chart import COLOURS, draw
from videoserve.local.pareto.clip import Clip, Measured, measured
from videoserve.local.pareto.report import lines, table
from videoserve.local.pareto.rivals import NO_CACHE_DIT, has_cache_dit


def clip(change: int = 0, denoise_s: float = 2.0) -> Clip:
    frames = np.random.default_rng(0).integers(50, 200, (3, 16, 16, 3), dtype=np.uint8)
    frames[2] += np.uint8(change)
    return Clip(frames=frames, denoise_s=denoise_s, whole_s=denoise_s + 1, letters="RR")


def one(case: str, change: int, denoise_s: float, row: str = "schedule 10") -> Measured:
    base, own = clip(denoise_s=4.0), clip(denoise_s=6.0)
    return measured(row, "schedule", case, clip(change, denoise_s), base, own)


def test_every_held_out_case_is_another_one_and_none_is_calibrated_on() -> None:
    cases = held_out(16, 2)
    assert len({case.key for case in cases}) == 32
    assert len({case.prompt for case in cases}) == 16
    assert len({case.name for case in cases}) == 4
    for half in (0, 1):
        seen = calibration(8, half)
        assert len({case.prompt for case in seen}) == 8
        assert not {case.prompt.lower() for case in seen} & {case.prompt.lower() for case in held_out(24, 1)}
        assert {half_of(case.name) for case in seen} == {half}
    with pytest.raises(ValueError, match="prompts is 25; there are 1 to 24"):
        held_out(25, 1)


def test_every_prompt_comes_once_before_any_comes_again() -> None:
    extent = measure.Extent(prompts=6, seeds=2, rivals=4, steps=20, guidance=3.0)
    assert [case.seed for case in extent.cases()] == [1] * 6 + [2] * 6
    assert extent.stride == 3


def test_a_line_has_median_speeds_and_the_worst_of_all_frames() -> None:
    (found,) = lines([one("a", 1, 1.0), one("b", 16, 2.0), one("c", 0, 4.0)])
    assert (found.denoise_x, found.own_x, found.whole_x) == (2.0, 3.0, 5 / 3)
    # The whole of one frame of two is off by 1 and by 16; equal videos have no PSNR to average.
    assert found.worst_db == pytest.approx(20 * np.log10(255 / 16))
    assert found.mean_db == pytest.approx(
        np.mean([20 * np.log10(255 / change) + 10 * np.log10(2) for change in (1, 16)])
    )
    assert found.cases == 3
    assert found.first_db is None
    assert "| schedule 10 | 3 | 2.00 | 3.00 | 1.67 |" in table([found])


def test_an_equal_video_says_so() -> None:
    (found,) = lines([one("a", 0, 4.0)])
    assert found.mean_db is None
    assert found.mean_ssim == 1
    assert "equal / equal" in table([found])


def test_the_chart_has_every_row_in_its_colour(tmp_path: Path) -> None:
    (found,) = lines([one("a", 1, 3.0)])
    dots = [replace(found, name=family, family=family, mean_db=30.0 + 3 * n) for n, family in enumerate(COLOURS)]
    draw(dots, tmp_path / "chart.png", "title")
    image = Image.open(tmp_path / "chart.png").convert("RGB")
    # The legend is below; what is above is the dots.
    colours = {colour for _, colour in image.crop((0, 120, 900, 730)).getcolors(1 << 16) or []}
    for colour in COLOURS.values():
        assert tuple(bytes.fromhex(colour[1:])) in colours


@pytest.mark.slow
def test_a_comparison_is_whole_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SAMPLES", 1)
    monkeypatch.setattr(measure, "RATIO_SAMPLES", 1)
    for name, less in (
        ("RUNS", (0.5,)),
        ("FEWER", (0.5,)),
        ("COMBINED", ((0.7, 0.5),)),
        ("POLICIES", rows.POLICIES[:1]),
    ):
        monkeypatch.setattr(rows, name, less)
    extent = measure.Extent(prompts=1, seeds=1, rivals=1, steps=6, guidance=3.0)
    said: list[str] = []
    printed = measure.compare(extent, tmp_path, said.append)
    assert (NO_CACHE_DIT in said) != has_cache_dit()
    kept = measure.read(tmp_path)
    found_of = {found.row: found for found in kept}
    assert found_of["uncached again"].mean_db is None
    theirs = found_of["diffusers uncached"]
    # Their sums run in another order.
    assert theirs.worst_db is None or theirs.worst_db > 70
    families = {found.family for found in kept}
    assert families >= {"schedule", "policies", "combined", "fewer steps", "floor", "diffusers"}
    for found in kept:
        if found.family == "schedule":
            assert found.letters.count("R") == int(found.row.split()[1])
    assert all(f"| {row} |" in printed for row in found_of)
    assert (tmp_path / "cache.png").stat().st_size > 10_000
    measure.compare(extent, tmp_path, said.append)
    assert len(measure.read(tmp_path)) == len(kept)
