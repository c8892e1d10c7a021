"""What no policy may overrule: when a step is computed whatever the policy wants."""

from dataclasses import dataclass
from math import isfinite

from videoserve_cache.steps.context import Decision, StepCtx
from videoserve_cache.steps.history import History

# Why a step was computed, or was not: one word a step in the receipt.
POLICY = "policy"
SKIPPED = "skipped"
FIRST = "first"
WARMUP = "warmup"
LAST = "last"
CAP = "cap"
NUMBER = "number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """`warmup` computed steps at the start of each expert; at most `max_skips` steps between two computed ones."""

    warmup: int = 2
    max_skips: int = 4

    def __post_init__(self) -> None:
        if self.warmup < 1:
            raise ValueError(f"warmup is {self.warmup}; the first step of an expert is always computed: 1 or more.")
        if self.max_skips < 0:
            raise ValueError(f"max_skips is {self.max_skips}; it is a number of steps: 0 or more.")

    def check(self, ctx: StepCtx, history: History, wanted: Decision, scalar: float | None) -> tuple[Decision, str]:
        """The decision that holds, and why. `scalar` None: nothing was probed."""
        if wanted is Decision.SKIP:
            why = self.forbids(ctx, history, scalar)
            return (Decision.SKIP, SKIPPED) if why is None else (Decision.RUN, why)
        return Decision.RUN, self.forbids(ctx, history, scalar) or POLICY

    def said(self, why: str) -> str:
        """The word for it as the end of a sentence about steps that had to be computed."""
        return {
            FIRST: "the first one of an expert always is",
            WARMUP: f"the first {self.warmup} of an expert always are (warmup)",
            LAST: "the last one always is",
            CAP: f"at most {self.max_skips} in a row are skipped (max_skips)",
            NUMBER: "what the policy measured was no number",
        }[why]

    def forbids(self, ctx: StepCtx, history: History, scalar: float | None) -> str | None:
        """Why this step cannot be skipped; None when it can."""
        last_run = history.last_run
        if last_run is None:
            return FIRST
        if history.runs < self.warmup:
            return WARMUP
        if ctx.last:
            return LAST
        # Steps in which a branch was not asked at all count like skipped ones: what it holds is as old.
        if ctx.step - last_run > self.max_skips:
            return CAP
        if scalar is not None and not isfinite(scalar):
            return NUMBER
        return None
