"""Forecasts fitted to what a calibration measured, in place of polynomials."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Stream

# Before a skipped step; another one behind it when it is taken again. More anchors fit what was measured better, and
# carry on more of what the anchors themselves have wrong: on the demo model two came out best.
DEPTH = 2
# Of the largest eigenvalue: outputs that hardly differ tell nothing apart.
RCOND = 1e-9


@dataclass(slots=True, kw_only=True)
class Fit:
    """The least squares of a calibration's outputs on the last `depth` computed ones, over all of its samples.

    Least squares are linear: what fits every step also fits their sum over a gap, whatever lengths the solver takes.
    """

    of: ClassVar[Stream] = "output"
    replay: ClassVar[bool] = False
    calibration: Calibration
    depth: int = DEPTH
    _gram: NDArray[np.float64] = field(init=False)
    _known: dict[tuple[int, ...], NDArray[np.float64]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._gram = self.calibration.grams(self.of).mean(axis=0)

    def weights(self, steps: Sequence[int], sigmas: Sequence[float], to: int) -> list[float]:
        """As of Forecast."""
        used = tuple(steps[-self.depth :])
        row: list[float] = self.onto(used)[:, to].tolist()
        return [0.0] * (len(steps) - len(used)) + row

    def onto(self, anchors: tuple[int, ...]) -> NDArray[np.float64]:
        """What each anchor counts in each step of the schedule, float64 [anchors, n]."""
        if anchors not in self._known:
            at = list(anchors)
            solved = np.linalg.lstsq(self._gram[np.ix_(at, at)], self._gram[at], rcond=RCOND)[0]
            self._known[anchors] = solved.astype(np.float64)
        return self._known[anchors]

    def fitted(self, letters: str) -> Fitted:
        """The forecast for a plan whose last step is computed: what each step is taken to be at first, and again.

        At first each skipped step also makes up for what those before it in its gap left wrong: what a step leaves
        wrong is a sum of outputs, and little of it is known then.
        """
        schedule = self.calibration.schedule
        wrong = np.zeros(schedule.n_steps)
        shares: list[tuple[float, ...]] = []
        for step, letter in enumerate(letters):
            if letter == Decision.RUN.value:
                shares.append(())
                # The gap is taken again, as well as is known by then.
                wrong[:] = 0.0
                continue
            length = schedule.sigmas[step + 1] - schedule.sigmas[step]
            anchors = self.anchors(letters, step)
            wanted = np.zeros(schedule.n_steps)
            wanted[step] = 1.0
            # A solver of second order comes to the same sigma twice, and such a step cannot make up for anything.
            wanted -= wrong / length if length else 0.0
            row = self.onto(anchors) @ wanted
            shares.append(tuple(row.tolist()))
            wrong[step] -= length
            wrong[list(anchors)] += length * row
        return Fitted(shares=tuple(shares), again=tuple(self.between(letters, step) for step in range(len(letters))))

    def between(self, letters: str, step: int) -> tuple[float, ...]:
        """The shares in a skipped step of the anchors on both of its sides, none where another expert comes next."""
        experts, until = self.calibration.schedule.experts, letters.index(Decision.RUN.value, step)
        if until == step or experts[until] != experts[step]:
            return ()
        return tuple(self.onto((*self.anchors(letters, step), until))[:, step].tolist())

    def anchors(self, letters: str, step: int) -> tuple[int, ...]:
        """The computed steps that are kept when `step` is skipped."""
        begin = self.calibration.schedule.first_of_expert(step)
        return tuple(at for at in range(begin, step) if letters[at] == Decision.RUN.value)[-self.depth :]
