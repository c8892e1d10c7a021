"""The emulated box at its smallest: two ranks in two namespaces, where root, ip and tc are there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from videoserve_kernels.comm.forecast import step_seconds
from videoserve_kernels.comm.plan import ParallelPlan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARTS = ("links", "cases", "ranks", "measure")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmark's modules by the last word of their names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return {part: importlib.import_module(f"_emulated_{part}") for part in PARTS}


@pytest.fixture
def able(parts: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """The same, on a machine where a box can be emulated."""
    reason = parts["links"].why_not()
    if reason:
        pytest.skip(reason)
    return parts


@pytest.mark.slow
def test_two_ranks_take_what_the_simulator_says(able: dict[str, ModuleType]) -> None:
    rates = able["links"].Rates(card=200, trunk=200)
    case = able["cases"].Case(name="tiny", rates=rates, attention_s=0.1)
    stepped = case.model(2)
    plan = ParallelPlan(ulysses=2, head_groups=5)
    with able["links"].EmulatedLinks(2) as links, able["ranks"].EmulatedRanks(links.names, True) as ranks:
        bench: Any = able["measure"].Bench(links, ranks)
        bench.shape(case)
        bench.measure_link(ParallelPlan(ring=2))
        seconds, megabytes = bench.step(plan, stepped, 3)
        # Attention and bytes are right, or it has noted otherwise; a link may have lost time to a busy machine.
        assert not [missed for missed in bench.missed if "link gives" not in missed]
        assert 1.02 < bench.packets < 1.10
        assert 0.9 < seconds / step_seconds(stepped, plan, case.box(2, bench.packets)) < 1.5
        # 2 q for each branch.
        assert megabytes == pytest.approx(2 * 2 * able["cases"].QUERIES / 1e6, rel=0.01)
        bench.hold(False, "a miss")
        with pytest.raises(SystemExit, match="1"):
            bench.conclude()
    assert not [name for name in able["links"].namespaces() if name.startswith(f"videoserve-{os.getpid()}-")]


def test_what_a_killed_run_has_left_is_taken_away(able: dict[str, ModuleType]) -> None:
    left = "videoserve-99999999-rank0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    able["links"].sweep()
    assert left not in able["links"].namespaces()


def test_without_root_it_says_so(parts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "needs root" in parts["links"].why_not()
    monkeypatch.setattr(sys, "argv", ["emulated_box.py"])
    assert importlib.import_module("emulated_box").main() is None


def test_what_head_groups_can_hide(parts: dict[str, ModuleType]) -> None:
    hideable_s = parts["cases"].hideable_s
    # All but a fifth of the exchange.
    assert hideable_s(2.0, 10.0, 5) == pytest.approx(1.6)
    # All of the attention but what the last group's has beyond the way back of the one before: (4 - 8 / 4) / 5.
    assert hideable_s(8.0, 4.0, 5) == pytest.approx(4.0 - 0.4)
    assert hideable_s(8.0, 4.0, 1) == pytest.approx(0.0)
