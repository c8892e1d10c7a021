"""What a policy is: pure, without tensors, asked once a step and branch."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol

from videoserve_cache.steps.context import LEAD, Branch, Decision, StepCtx
from videoserve_cache.steps.fitted import Fitted
from videoserve_cache.steps.forecast import Forecast
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.history import History, Past
from videoserve_cache.steps.schedule import Schedule

# What a policy looks at: the latents before the transformer, or what its first blocks add to the tokens.
ProbeKind = Literal["latent", "blocks"]


class Policy(Protocol):
    """`probe` says what the scalar of `decide` is made of; None: the policy looks at nothing, and has a plan."""

    name: ClassVar[str]

    @property
    def forecast(self) -> Forecast | Fitted: ...

    @property
    def guards(self) -> Guards: ...

    @property
    def probe(self) -> ProbeKind | None: ...

    def plan(self, schedule: Schedule) -> "Plan | None":
        """What it wants at each step of the deciding branch, guards not regarded; None when that is not yet known."""
        ...

    def decide(self, ctx: StepCtx, history: History, scalar: float | None) -> Decision:
        """What it wants at one step; guards are not its business."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision a step, as letters."""

    letters: str

    def __post_init__(self) -> None:
        odd = sorted(set(self.letters) - {decision.value for decision in Decision})
        if odd or not self.letters:
            raise ValueError(f"steps is {self.letters!r}; it has a letter a step: R (compute it) or . (skip it).")

    @property
    def runs(self) -> int:
        return self.letters.count(Decision.RUN.value)

    def at(self, step: int) -> Decision:
        return Decision(self.letters[step])

    @classmethod
    def of(cls, skips: Callable[[int], bool], steps: int) -> "Plan":
        return cls("".join((Decision.SKIP if skips(step) else Decision.RUN).value for step in range(steps)))


def executed(policy: Policy, schedule: Schedule, branch: Branch = LEAD) -> str | None:
    """The letters that a static policy ends with, guards regarded; ' ' where the branch is not asked. None: dynamic."""
    return None if policy.plan(schedule) is None else simulated(policy, schedule, branch)


def simulated(policy: Policy, schedule: Schedule, branch: Branch = LEAD) -> str:
    """The letters of a policy that decides without a probe, as `executed` tells them."""
    histories: dict[Branch, History] = {}
    letters = ""
    for step in range(schedule.n_steps):
        if step == schedule.first_of_expert(step):
            histories.clear()
        decision = settle(policy, schedule.at(step), histories)
        if branch != LEAD:
            asked = schedule.guided[step]
            letters += settle(policy, schedule.at(step, branch), histories, decision) if asked else " "
        else:
            letters += decision
    return letters


def settle(policy: Policy, ctx: StepCtx, histories: dict[Branch, History], lead: Decision | None = None) -> Decision:
    """Decides a step without a probe, and adds it to the branch's history; `lead` is what the deciding branch did."""
    history = histories.get(ctx.branch, History())
    wanted = policy.decide(ctx, history, None) if lead is None else lead
    decision, _ = policy.guards.check(ctx, history, wanted, None)
    histories[ctx.branch] = history.then(Past(ctx.step, decision))
    return decision


def described(policy: Policy) -> dict[str, Any]:
    """The policy as JSON, for receipts and to tell whether two are the same."""
    fields: dict[str, Any] = asdict(policy)  # type: ignore[call-overload]
    return {"policy": policy.name, **fields}
