"""`videoserve plan` on boxes described in files, and on this machine with ranks of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.plan import ParallelPlan

BOX = {
    "cards": 8,
    "card": 50e9,
    "islands": 4,
    "trunk": 60e9,
    "collapse": 0.44,
    "attention": 180e12,
    "linear": 220e12,
    "memory": 96e9,
}


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "box.json").write_text(json.dumps(BOX))
    return tmp_path / "box.json"


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["plan", *map(str, words)], env={"COLUMNS": "200"})


def told(*words: object) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_a_box_that_one_does_not_have_is_planned_for(box: Path) -> None:
    answer = told("--model", "wan-14b", "--links", box, "--steps", "10")
    assert (answer["size"], answer["frames"], answer["tokens"], answer["steps"]) == ("832x480", 81, 32_760, 10)
    assert answer["guided"][0]["plan"] == answer["chosen"]["guided"]
    assert ParallelPlan.parse(answer["chosen"]["guided"]).cfg == 2
    assert ParallelPlan.parse(answer["chosen"]["plain"]).cfg == 1
    u8 = next(one for one in answer["guided"] if one["plan"] == "u8")
    # 3.5 q of 41.9 MB for each of two branches.
    assert u8["layer_bytes"] == pytest.approx(7 * 41.9e6, rel=0.002)
    assert u8["layer_messages"] == 14
    assert all(one["measured_s"] is None for one in answer["guided"])
    assert answer["guided"][0]["step_s"] < answer["one_rank_step_s"] / 7


def test_the_table_says_what_is_chosen_and_why(box: Path) -> None:
    result = run("--model", "wan-14b", "--links", box)
    assert result.exit_code == 0
    assert "wan-14b, 832x480, 81 frames, 40 steps, 32,760 tokens, on 8 cards: box, as" in result.stdout
    assert "is chosen: " in result.stdout
    assert "Without guidance: " in result.stdout
    lines = [line for line in result.stdout.splitlines() if line.rstrip().endswith("chosen")]
    assert len(lines) == 1


def test_fewer_ranks_another_codec_and_another_aim(box: Path) -> None:
    four = told("--model", "wan-14b", "--links", box, "--ranks", "4", "--wire", "int8")
    assert {ParallelPlan.parse(one["plan"]).ranks for one in four["guided"]} == {4}
    assert all("int8" in one["plan"] or one["plan"] == "cfg2" for one in four["guided"])
    many = told("--model", "wan-14b", "--links", box, "--aim", "throughput")
    assert {one["jobs"] for one in many["guided"]} == {1, 2, 4, 8}


def test_a_slow_box_serves_two_jobs_side_by_side(box: Path) -> None:
    slow = BOX | {"card": 3e9, "trunk": 3e9}
    box.write_text(json.dumps(slow))
    result = run("--model", "wan-14b", "--links", box, "--aim", "throughput")
    assert "jobs run side by side: --workers " in result.stdout


def test_the_shape_of_the_demo_model_comes_from_its_json(box: Path) -> None:
    answer = told("--links", box, "--size", "160x96", "--frames", "9")
    assert (answer["model"], answer["size"], answer["frames"]) == ("demo", "160x96", 9)
    assert max(ParallelPlan.parse(one["plan"]).ulysses for one in answer["guided"]) <= 8


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--size", "832"], "--size is '832'; it must be WIDTHxHEIGHT"),
        (["--size", "830x480"], "The size is 830x480; wan-14b makes multiples of 16x16"),
        (["--frames", "80"], "frames is 80"),
        (["--ranks", "16"], "16 ranks are asked for and the box has 8 cards"),
        (["--model", "nothing"], "The names wan-14b, wan-a14b, wan-ti2v-5b need no directory"),
        (["--links", "nowhere.toml"], "cannot be read"),
    ],
)
def test_wrong_calls_end_with_a_sentence(box: Path, words: list[str], sentence: str) -> None:
    result = run("--model", "wan-14b", "--links", box, *words)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_what_does_not_fit_is_said(box: Path) -> None:
    box.write_text(json.dumps(BOX | {"memory": 24e9}))
    result = run("--model", "wan-14b", "--links", box)
    assert result.exit_code == 2
    assert "No plan fits: the smallest needs" in result.stderr


def test_a_described_box_needs_no_torch(box: Path) -> None:
    code = (
        "import sys; from videoserve.cli import app; "
        f"app(['plan', '--model', 'wan-14b', '--links', {str(box)!r}, '--json'], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_this_machine_is_measured_once_and_remembered(tmp_path: Path) -> None:
    words = ("--data", tmp_path, "--ranks", "2", "--device", "cpu")
    first = told(*words)
    assert first["box"]["source"] == "measured here with gloo on cpu"
    (kept,) = (tmp_path / "calibrations").glob("*.json")
    before = kept.stat().st_mtime_ns
    # What the engine found on warm-up steps comes first.
    key = "demo:128x128x17:g1:2:float32:none"
    Choices(tmp_path, first["box"]["fingerprint"]).keep(
        key, Choice(plan=ParallelPlan.parse("u2-g2"), step_s=1.0, measured_s=0.5)
    )
    second = told(*words)
    assert kept.stat().st_mtime_ns == before
    assert second["one_rank_step_s"] == first["one_rank_step_s"]
    assert (second["chosen"]["guided"], second["guided"][0]["measured_s"]) == ("u2-g2", 0.5)
    assert second["why"][1].startswith("It won on warm-up steps")
