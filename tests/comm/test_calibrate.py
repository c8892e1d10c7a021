"""Calibration: islands out of tables, files, and real ranks that measure each other."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from videoserve_kernels.comm import calibration
from videoserve_kernels.comm.calibrate import calibrate, next_within
from videoserve_kernels.comm.calibration import Calibration, HostCopies
from videoserve_kernels.comm.clusters import clusters
from videoserve_kernels.comm.planner import rank
from videoserve_kernels.comm.probe import Probe
from videoserve_kernels.comm.transformer import WAN_14B

Ranks = Callable[[int], Callable[..., list[Any]]]
# Bytes/s of links whose speed is told.
RATE = 1e7


def table(groups: list[list[int]], within: float, across: float, noise: float = 0.0) -> list[list[float]]:
    """Rates between pairs, within groups and across, each a bit off."""
    count = sum(map(len, groups))
    home = {card: number for number, group in enumerate(groups) for card in group}
    wave = torch.rand(count, count, generator=torch.Generator().manual_seed(1))
    return [
        [
            0.0
            if i == j
            else (within if home[i] == home[j] else across) * (1 + noise * float(wave[min(i, j), max(i, j)] - 0.5))
            for j in range(count)
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 2, 4, 6], [1, 3, 5, 7]],
        [[0, 1], [2, 3], [4, 5], [6, 7]],
        [[0, 1, 2], [3]],
        [[0, 3], [1, 2, 4]],
    ],
    ids=str,
)
def test_islands_are_found_in_rates_that_scatter(groups: list[list[int]]) -> None:
    assert clusters(table(groups, 50.0, 30.0, noise=0.2)) == tuple(map(tuple, groups))


def test_rates_that_differ_little_are_one_island() -> None:
    assert clusters(table([[0, 1, 2, 3], [4, 5, 6, 7]], 50.0, 45.0, noise=0.1)) == (tuple(range(8)),)
    assert clusters(table([[0, 1], [2, 3]], 50.0, 50.0, noise=0.3)) == ((0, 1, 2, 3),)
    assert clusters([[0.0]]) == ((0,),)
    assert clusters([[0.0, 5.0], [5.0, 0.0]]) == ((0, 1),)


def test_the_neighbours_of_an_island_close_its_circle() -> None:
    assert next_within(((0, 2, 4), (1, 3), (5,))) == {0: 2, 2: 4, 4: 0, 1: 3, 3: 1}


def measured(**changes: Any) -> Calibration:
    """Eight cards on two islands, as published: 50 GB/s to the next, 22 to all; across 4 share 60."""
    base = Calibration(
        fingerprint="0123456789abcdef",
        ranks=8,
        backend="nccl",
        device="cuda",
        dtype="bfloat16",
        pairs=tuple(map(tuple, table([[0, 1, 2, 3], [4, 5, 6, 7]], 55e9, 40e9))),
        shifts=(50e9,) * 7,
        all_to_all=22e9,
        all_to_all_staged=45e9,
        islands=((0, 1, 2, 3), (4, 5, 6, 7)),
        neighbours=50e9,
        crossing=22e9,
        trunk=60e9,
        latency_s=2e-5,
        at_once_bytes=48 * 1024,
        attention=150e12,
        linear=200e12,
        card_bytes=96e9,
        host_copies=HostCopies(alone=50e9, beside=30e9, shift=30e9),
        seconds=19.0,
    )
    return replace(base, **changes)


def test_the_box_has_the_measured_links() -> None:
    box = measured().box
    assert box.homes == (0, 0, 0, 0, 1, 1, 1, 1)
    assert box.rates([(0, 1)]) == [50e9]
    assert box.rates([(0, 1), (0, 2)]) == pytest.approx([11e9, 11e9])
    assert box.rates([(0, 4), (1, 5), (2, 6), (3, 7)]) == pytest.approx([15e9] * 4)
    assert box.latency == 2e-5
    model = WAN_14B.model(32_760, 2, measured().rates)
    assert rank(model, box, 8)[0].plan.cfg == 2


def test_a_calibration_is_kept_by_host_ranks_backend_and_dtype(tmp_path: Path) -> None:
    kept = measured()
    calibration.save(tmp_path, kept)
    assert calibration.load(tmp_path, kept.fingerprint, 8, "nccl", "bfloat16") == kept
    assert calibration.load(tmp_path, kept.fingerprint, 4, "nccl", "bfloat16") is None
    assert calibration.load(tmp_path, kept.fingerprint, 8, "gloo", "bfloat16") is None
    assert calibration.load(tmp_path, "another", 8, "nccl", "bfloat16") is None
    assert calibration.load(tmp_path, kept.fingerprint, 8, "nccl", "float32") is None
    again = measured(seconds=18.0, trunk=None, host_copies=None)
    calibration.save(tmp_path, again)
    assert calibration.load(tmp_path, kept.fingerprint, 8, "nccl", "bfloat16") == again
    assert len(list(tmp_path.rglob("*.*"))) == 1
    assert Calibration.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept


def test_a_host_is_measured_once_by_however_many_processes(tmp_path: Path) -> None:
    asked = []

    def measure() -> Calibration:
        asked.append(1)
        return measured()

    key = (tmp_path, measured().fingerprint, 8, "nccl", "bfloat16")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: calibration.once(*key, measure), range(4)))
    assert found == [measured()] * 4
    assert len(asked) == 1
    calibration.forget(*key)
    calibration.once(*key, measure)
    assert len(asked) == 2


def test_one_rank_measures_what_it_computes() -> None:
    alone = calibrate("here")
    assert (alone.ranks, alone.shifts, alone.islands) == (1, (), ((0,),))
    assert alone.attention > 1e8
    assert alone.linear > 1e8
    assert alone.box.ranks == 1
    (only,) = rank(WAN_14B.model(1_000, 2, alone.rates), alone.box, 1)
    assert only.plan.ranks == 1


def on_a_rank(world: Any, budget_s: float, believed: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
    return calibrate("ranks", budget_s=budget_s, believed=believed).to_dict()


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_measure_each_other_and_agree(ranks_of: Ranks, size: int) -> None:
    told = ranks_of(size)(on_a_rank, 3.0, ())
    assert all(answer == told[0] for answer in told)
    made = Calibration.from_dict(told[0])
    assert (made.ranks, made.backend, made.device, made.host_copies) == (size, "gloo", "cpu", None)
    assert len(made.shifts) == size - 1
    assert all((made.pairs[i][j] > 0) == (i != j) for i in range(size) for j in range(size))
    assert made.pairs == tuple(zip(*made.pairs, strict=True))
    for rate in (*made.shifts, made.all_to_all, made.all_to_all_staged, made.neighbours, made.crossing):
        assert 0 < rate < 1e12
    assert made.latency_s > 0
    assert made.at_once_bytes >= 0
    assert sorted(rank for island in made.islands for rank in island) == list(range(size))
    assert made.seconds > 0
    assert rank(WAN_14B.model(1_000, 2, made.rates), made.box, size)[0].plan.ranks == size


class Told(Probe):
    """Sends what it is asked to, and is told how long that takes: thrice as long between odd ranks and even ones."""

    def send(self, targets: Mapping[int, int], size: int | None = None) -> None:
        crosses = any((source - target) % 2 for source, target in targets.items())
        self.spent += (self.size if size is None else size) / (RATE / 3 if crosses else RATE)
        super().send(targets, size)

    def _run(self, work: Callable[[], object]) -> float:
        self.spent = 1e-4
        work()
        return self.spent


def with_slow_links(world: Any) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("videoserve_kernels.comm.calibrate.Probe", Told)
        return calibrate("slow", budget_s=4.0).to_dict()


def test_ranks_find_islands_that_lie_across_their_numbers(ranks_of: Ranks) -> None:
    made = Calibration.from_dict(ranks_of(4)(with_slow_links)[0])
    assert made.islands == ((0, 2), (1, 3))
    assert made.neighbours == pytest.approx(RATE, rel=0.01)
    # Two streams.
    assert made.trunk == pytest.approx(2 * RATE / 3, rel=0.01)
    assert made.box.homes == (0, 1, 0, 1)


class Costed(Probe):
    """Is told that an exchange takes 0.1 s and a byte a microsecond."""

    def seconds(self, work: Callable[[], object]) -> float:
        before = self._at_once.counters.sent()
        work()
        after = self._at_once.counters.sent()
        exchanges = (after.messages - before.messages) / (self.ranks - 1)
        return 0.1 * exchanges + 1e-6 * (after.bytes - before.bytes)


def tried_sums(world: Any) -> int:
    probe = Costed(world.size, torch.device("cpu"), 30.0)
    try:
        return probe.at_once_bytes()
    finally:
        probe.close()


def test_sums_are_made_at_once_up_to_where_the_bytes_outweigh_a_wait(ranks_of: Ranks) -> None:
    # Of four ranks: 0.1 s + 3 · size beside 0.2 s + 1.5 · size.
    assert ranks_of(4)(tried_sums) == [65_536] * 4
    # Of two ranks both send the same.
    assert ranks_of(2)(tried_sums) == [2**20] * 2
