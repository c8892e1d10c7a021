"""The whole comparison, case by case, kept after each: a run that is stopped goes on where it was."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from math import ceil
from pathlib import Path

import torch

from videoserve.local.pareto.cases import Case, calibration, half_of, held_out
from videoserve.local.pareto.chart import draw
from videoserve.local.pareto.clip import Clip, Measured, measured
from videoserve.local.pareto.ours import Ours
from videoserve.local.pareto.report import alike, lines, table, to_json
from videoserve.local.pareto.rivals import NO_CACHE_DIT, has_cache_dit
from videoserve.local.pareto.rows import UNCACHED, Row, calibrated_steps, other_rows, our_rows, rival_rows
from videoserve.local.pareto.theirs import Theirs, hushed
from videoserve_cache.steps.calibration import Calibration

SAMPLES = 6
# MagCache's authors calibrate on one prompt.
RATIO_SAMPLES = 2
SEALED_WITH = b"bench"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured. `rivals`: on about how many of the cases more is measured than `schedule` and fewer
    steps.

    `part` (K, N): every N-th case from the K-th on, 1 the first, so that several processes share a run. `busy`: one
    thread and its processor time, in place of wall time, for a machine that does other work.
    """

    prompts: int
    seeds: int
    rivals: int
    steps: int
    guidance: float
    part: tuple[int, int] = (1, 1)
    busy: bool = False

    @property
    def stride(self) -> int:
        """Of every so many cases one is measured with everything."""
        return ceil(self.prompts * self.seeds / self.rivals)

    def cases(self) -> list[Case]:
        """All cases; first every prompt with the first seed."""
        found = held_out(self.prompts, self.seeds)
        return [case for seed in range(self.seeds) for case in found[seed :: self.seeds]]


class Measurement:
    """The cases of this part, all their rows, and where they are kept."""

    def __init__(self, extent: Extent, folder: Path, say: Say) -> None:
        if extent.busy:
            torch.set_num_threads(1)
        self._extent = extent
        self._folder = folder
        self._say = say
        part, parts = extent.part
        self._file = folder / f"cases-{part}-of-{parts}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self.ours = Ours(extent.steps, extent.guidance, time.process_time if extent.busy else time.perf_counter)

    def run(self) -> None:
        """Measures what is not there yet."""
        part, parts = self._extent.part
        cases = list(enumerate(self._extent.cases()))[part - 1 :: parts]
        done = {(found.row, found.case) for found in read(self._folder)}
        wanted = calibrated_steps(self._extent.steps)
        # By the half that is measured: calibrated on the other one.
        ours = [{steps: self.calibrated(steps, 1 - half) for steps in wanted} for half in (0, 1)]
        theirs = Theirs(self.ours)
        rivals = rival_rows(theirs, self.ratios(theirs), self._extent.steps)
        for index, case in cases:
            calibrations = ours[half_of(case.name)]
            rows = our_rows(self.ours, calibrations)
            if index % self._extent.stride == 0:
                rows += [*other_rows(self.ours, calibrations), *rivals]
            rows = [row for row in rows if (row.name, case.key) not in done]
            if rows:
                self._case(case, rows, theirs)

    def calibrated(self, steps: int, half: int) -> Calibration:
        """On one half of the pictures; measured once and kept."""
        path = self._folder / f"calibration-{steps}-{half}.json"
        if not path.exists():
            self._say(f"Calibrates {steps} steps on {SAMPLES} videos of the pictures' half {half}.")
            cases = [self.ours.prepare(case) for case in calibration(SAMPLES, half)]
            self.ours.calibration(cases, steps).save(path, SEALED_WITH)
        return Calibration.load(path, SEALED_WITH)

    def ratios(self, theirs: Theirs) -> list[float]:
        """MagCache's, by its own calibration; measured once and kept."""
        path = self._folder / "ratios.json"
        if not path.exists():
            cases = [(case, self.ours.prepare(case)) for case in calibration(RATIO_SAMPLES, 0)]
            with hushed():
                path.write_text(json.dumps(theirs.ratios(cases)))
        found: list[float] = json.loads(path.read_text())
        return found

    def _case(self, case: Case, rows: list[Row], theirs: Theirs) -> None:
        self._say(f"{case.key}: {len(rows)} rows.")
        made = self.ours.prepare(case)
        base = self.ours.clip(made)
        own: dict[bool, Clip] = {False: base}
        for row in rows:
            with hushed():
                clip = row.make(case, made)
                if row.theirs and row.theirs not in own:
                    own[True] = clip if row.name == UNCACHED else theirs.clip(case, made, None)
            self._keep(measured(row.name, row.family, case.key, clip, base, own[row.theirs]))

    def _keep(self, found: Measured) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(found.to_dict()) + "\n")


def compare(extent: Extent, folder: Path, say: Say) -> str:
    """Measures what is not there yet, writes cache.json of all that is and cache.png of the cases that have every row.

    Returns both as tables.

    ValueError for more prompts than there are.
    """
    extent.cases()
    if not has_cache_dit():
        say(NO_CACHE_DIT)
    Measurement(extent, folder, say).run()
    kept = read(folder)
    found, same = lines(kept), lines(alike(kept))
    clock = "processor time of one thread" if extent.busy else f"wall time, {torch.get_num_threads()} threads"
    title = f"demo model, {extent.steps} steps, guidance {extent.guidance:g}, {clock}, torch {torch.__version__}"
    about = {"title": title, "machine": platform.processor() or platform.machine(), "date": str(date.today())}
    (folder / "cache.json").write_text(json.dumps(to_json(found, about), indent=1))
    if not same:
        return table(found)
    draw(same, folder / "cache.png", title)
    return f"{table(found)}\n\nOn the cases that have every row, as in the picture:\n\n{table(same)}"


def read(folder: Path) -> list[Measured]:
    """Everything kept in a folder, of all parts."""
    files = sorted(folder.glob("cases-*.jsonl"))
    return [Measured(**json.loads(line)) for file in files for line in file.read_text().splitlines()]
