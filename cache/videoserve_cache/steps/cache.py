"""The step cache of one request on one rank: asks the policy, guards the answer, keeps and forecasts."""

import json
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from videoserve_cache.steps.agreement import Agreement, Reduce
from videoserve_cache.steps.context import LEAD, Branch, Decision, StepCtx
from videoserve_cache.steps.extrapolate import foretold
from videoserve_cache.steps.history import History, Past
from videoserve_cache.steps.log import Decided, letters, overruled
from videoserve_cache.steps.policy import Policy, described, executed
from videoserve_cache.steps.probe import PROBES, Probe
from videoserve_cache.steps.schedule import Schedule
from videoserve_cache.steps.store import Budget, Store

FORMAT = "videoserve-steps-2"
KEPT = "kept"
LATENTS = "latents"
PENDING = "cache.pending"


class UnusableStateError(ValueError):
    """A kept state is of another policy, request or schedule; the message says which."""


class StepCache:
    """What a request's denoising loop asks before, and tells after, each step.

    One object a request and rank, to be used as a context manager: whatever ends the loop, nothing stays behind. Before
    a step `decide`, for cond first; then, for each branch this rank computes, `keep` when it ran and `estimate` when
    it is skipped. With a policy that probes, every rank of the group makes the same calls of `decide`.
    """

    def __init__(
        self, policy: Policy, schedule: Schedule, request: str, *, budget: Budget, reduce: Reduce | None = None
    ) -> None:
        """ValueError when the policy is for another number of steps."""
        self.policy = policy
        self.schedule = schedule
        self.request = request
        self.log: list[Decided] = []
        self._plan = executed(policy, schedule)
        self._store = Store(budget)
        self._agreement = Agreement(reduce, json.dumps(described(policy)))
        self._probe = self._fresh_probe()
        self._era: list[Any] = []
        self._due = False
        self._restored = False
        self._histories: dict[Branch, History] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._store.nbytes

    @property
    def _again(self) -> bool:
        """Whether what is kept is lost with the rank, and computed again."""
        return self._probe is not None and self._probe.again

    @property
    def plan(self) -> str | None:
        """The letters that this request will end with, where they are known before its first step."""
        return self._plan

    @torch.inference_mode()
    def decide(self, ctx: StepCtx, x: Tensor | None = None, mask: Tensor | None = None) -> Decision:
        """Whether to compute the step of ctx's branch; cond before uncond. Asked again, the answer is the same.

        x is what the policy's probe looks at, of the deciding branch: the latents [1, C, F, H, W], or what the first
        blocks added to this rank's tokens [1, S, C] (mask bool [1, S]: which of them count). None where the policy
        probes nothing, for the other branch, and on a rank that holds nothing of the deciding one. DisagreementError.
        """
        assert ctx.request == self.request, f"the cache of {self.request} was asked about {ctx.request}"
        asked = self._asked(ctx)
        if asked is not None:
            return asked
        if ctx.branch != LEAD:
            lead = self._asked(ctx.of(LEAD))
            assert lead is not None, "cond is asked before uncond"
            return self._settle(ctx, lead, None)
        assert not self._due, "the loop has not replayed what its policy wants replayed"
        self._enter(ctx, x)
        if self._probe is None:
            return self._settle(ctx, self.policy.decide(ctx, self._history(ctx), None), None)
        scalar = self._probe.scalar(self._agreement.total(self._probe.sums(ctx, self._store, x, mask), ctx))
        decision = self._settle(ctx, self.policy.decide(ctx, self._history(ctx), scalar), scalar)
        self._agreement.confirm(decision, ctx)
        self._probe.decided(ctx, self._store, x, decision)
        return decision

    @torch.inference_mode()
    def keep(self, ctx: StepCtx, inputs: Tensor, output: Tensor, mask: Tensor | None = None) -> None:
        """Takes copies of what a computed step made of its inputs, same shape; changes neither.

        Latents and velocity, or tokens before and after the blocks that may be skipped. BudgetExceededError.
        """
        skipped = bool(self._skipped(ctx))
        if not (skipped or self._skips_after(ctx.step)):
            self._store.drop()
            return
        self._due = self._due or (skipped and ctx.branch == LEAD)
        forecast = self.policy.forecast
        value = output - inputs if forecast.of == "residual" else output
        self._store.put(ctx, KEPT, value, forecast.depth)
        if self._probe is not None and ctx.branch == LEAD:
            self._probe.computed(ctx, self._store, inputs, output, mask)

    @torch.inference_mode()
    def note(self, ctx: StepCtx, latents: Tensor) -> None:
        """Keeps a copy of the latents that a computed step began with, for `state`: on the rank whose state is kept.

        With the policy first_blocks what is kept of a step are activations, each rank's own and many times as large as
        the latents they can be computed from again.
        """
        if self._again:
            self._store.put(ctx.of(LEAD), LATENTS, latents, self.policy.forecast.depth)

    def lost(self, ctx: StepCtx) -> list[tuple[StepCtx, Tensor]]:
        """What is to be computed again after `restore`, before the step of ctx: steps and their latents, oldest first.

        Nothing where another expert or other weights take over, which start with nothing anyway.
        """
        if not self._restored or not self._again or self._era[:2] != [ctx.epoch, ctx.expert]:
            return []
        noted = self._store.anchors(ctx.of(LEAD), LATENTS)
        return [(replace(ctx, **self._place(anchor.step)), anchor.value) for anchor in noted]

    @torch.inference_mode()
    def refill(self, ctx: StepCtx, x: Tensor | None) -> None:
        """In place of `decide` where a computed step is computed again; x as there. `keep` follows."""
        assert self._probe is not None, "a policy that probes nothing loses nothing"
        self._restored = False
        # Rank 0's in the state: every rank has a shape of its own.
        self._era = [ctx.epoch, ctx.expert, None if x is None else list(x.shape)]
        self._probe.decided(ctx, self._store, x, Decision.RUN)

    @torch.inference_mode()
    def estimate(self, ctx: StepCtx, inputs: Tensor) -> Tensor:
        """What a skipped step would make of its inputs, in their dtype."""
        forecast = foretold(self.policy.forecast, self._store.anchors(ctx, KEPT), ctx)
        if self.policy.forecast.of == "residual":
            forecast = forecast + inputs
        return forecast.to(inputs.dtype)

    def owed(self, ctx: StepCtx) -> list[StepCtx]:
        """The steps that ctx's branch skipped right before this computed one, to be replayed once it is kept.

        Replaying: the loop goes back to before the first of them, takes each again with what `estimate` now says, and
        then this step with what was computed for it. Empty where the policy does not replay.
        """
        self._due = False
        return self._skipped(ctx)

    def close(self) -> None:
        """Lets everything go; the log stays."""
        self._forget()

    def receipt(self) -> dict[str, Any]:
        """What was done, as JSON: letters of both branches, what the probe said, why steps ran and which against the
        policy, the most bytes held."""
        lead = [decided for decided in self.log if decided.branch == LEAD]
        return {
            **described(self.policy),
            "steps": letters(self.log, LEAD),
            "uncond_steps": letters(self.log, "uncond"),
            "planned": self._plan,
            "probe": [None if decided.scalar is None else f"{decided.scalar:.6g}" for decided in lead],
            "why": [decided.why for decided in lead],
            "overruled": overruled(lead, self.policy.guards),
            "steps_saved": sum(decided.decision is Decision.SKIP for decided in lead),
            "peak_bytes": self._store.peak,
        }

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that later decisions and forecasts of this rank depend on, between two steps.

        CPU tensors by name, and JSON that names them. With the policy first_blocks it serves every rank, whatever its
        shard: what each kept itself is not in it (see `note` and `lost`).
        """
        tensors, about = self._store.state((LATENTS,) if self._again else None)
        if self._probe is not None and not self._again:
            tensors[PENDING] = self._probe.pending.to("cpu", copy=True)
        histories = {branch: [past.to_list() for past in history.past] for branch, history in self._histories.items()}
        log = [decided.to_list() for decided in self.log]
        return tensors, {**self._identity(), "era": self._era, "histories": histories, "log": log, "store": about}

    def restore(self, tensors: dict[str, Tensor], state: dict[str, Any], device: torch.device) -> None:
        """Puts a fresh cache to where `state` was taken, bit for bit once what is `lost` has been computed again.

        On a rank that did not `note` the latents: without tensors, and with "store" [] in the state. UnusableStateError
        changes nothing.
        """
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise UnusableStateError(
                    f"The step cache was kept with another {name}: {state.get(name)}, and this is {mine}."
                )
        self._store.restore(tensors, state["store"], device)
        if self._probe is not None and not self._again:
            self._probe.pending = tensors[PENDING].to(device, copy=True)
        self._era = state["era"]
        self._restored = True
        self._histories = {
            branch: History(tuple(map(Past.from_list, past))) for branch, past in state["histories"].items()
        }
        self.log = [Decided.from_list(told) for told in state["log"]]

    def _identity(self) -> dict[str, str]:
        schedule = [[sigma.hex() for sigma in self.schedule.sigmas], self.schedule.experts, self.schedule.guided]
        return {
            "format": FORMAT,
            "request": self.request,
            "policy": json.dumps(described(self.policy)),
            "schedule": json.dumps(schedule),
        }

    def _asked(self, ctx: StepCtx) -> Decision | None:
        """What was decided for this step and branch, when it was."""
        # A step that failed in company is tried again alone: no reason to measure it twice.
        recent = (decided for decided in self.log[-2:] if (decided.step, decided.branch) == (ctx.step, ctx.branch))
        return next((decided.decision for decided in recent), None)

    def _history(self, ctx: StepCtx) -> History:
        return self._histories.get(ctx.branch, History())

    def _settle(self, ctx: StepCtx, wanted: Decision, scalar: float | None) -> Decision:
        history = self._history(ctx)
        decision, why = self.policy.guards.check(ctx, history, wanted, scalar)
        self._histories[ctx.branch] = history.then(Past(ctx.step, decision, scalar))
        self.log.append(Decided(ctx.step, ctx.branch, decision, why, wanted, scalar))
        return decision

    def _enter(self, ctx: StepCtx, x: Tensor | None) -> None:
        """Forgets everything when the step is of another expert, other weights or another shape than the last one."""
        known = self._era[2] if self._era else None
        era = [ctx.epoch, ctx.expert, known if x is None else list(x.shape)]
        if era != self._era:
            self._forget()
            self._era = era

    def _forget(self) -> None:
        self._store.drop()
        self._histories.clear()
        self._due = False
        self._probe = self._fresh_probe()

    def _fresh_probe(self) -> Probe | None:
        return None if self.policy.probe is None else PROBES[self.policy.probe]()

    def _skipped(self, ctx: StepCtx) -> list[StepCtx]:
        """The steps between ctx and the computed one before it, where the policy replays them."""
        if not self.policy.forecast.replay:
            return []
        skipped: list[StepCtx] = []
        for past in reversed(self._history(ctx).past):
            if past.step < ctx.step:
                if past.decision is Decision.RUN:
                    break
                skipped.insert(0, replace(ctx, **self._place(past.step)))
        return skipped

    def _place(self, step: int) -> dict[str, Any]:
        """What an earlier step has otherwise than a later one of the same expert."""
        at = self.schedule.at(step)
        return {"step": step, "sigma": at.sigma, "sigma_next": at.sigma_next, "guided": at.guided}

    def _skips_after(self, step: int) -> bool:
        """Whether anything may still be skipped, so that keeping has a use."""
        return self._plan is None or Decision.SKIP.value in self._plan[step + 1 :]
