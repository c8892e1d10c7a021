"""Where a generation stands when its cache is asked: all that a decision may depend on. Nothing here counts."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Branch = Literal["cond", "uncond"]
# The branch that decides; the other one follows.
LEAD: Branch = "cond"


class Decision(StrEnum):
    """Whether the transformer computes a step; the values are the letters of masks and receipts."""

    RUN = "R"
    SKIP = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCtx:
    """One step of one branch, as the denoising loop knows it. `step` counts from 0; the caches hold no counters.

    epoch         names the weights with all adapters on them: another epoch, another model
    expert        which transformer takes the step: 0 the only or the high-noise one, 1 the low-noise one
    sigma         noise level before the step, `sigma_next` after it
    guided        whether guidance is active in this step, so that there is an unconditional branch
    group         the ranks that compute this request and nothing else; the reduction goes over them
    """

    request: str
    epoch: str
    expert: int
    branch: Branch
    step: int
    n_steps: int
    sigma: float
    sigma_next: float
    guided: bool
    group: tuple[int, ...] = (0,)

    @property
    def last(self) -> bool:
        return self.step == self.n_steps - 1

    def of(self, branch: Branch) -> "StepCtx":
        """The same step of another branch."""
        return replace(self, branch=branch)
