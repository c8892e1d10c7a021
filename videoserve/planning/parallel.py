"""How ranks should share a video: the plans of a box for a workload, as figures and in sentences. No torch."""

from dataclasses import dataclass, replace
from typing import Any

from videoserve.planning.workload import Workload, choice_key
from videoserve_kernels.comm.calibration import Calibration
from videoserve_kernels.comm.choices import Choice, Choices
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.planner import TIE, Aim, Forecasted, Terms, pair, rank
from videoserve_kernels.comm.transformer import Rates

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a plan runs on. `source` says in words where the figures come from."""

    source: str
    box: Box
    rates: Rates
    card_bytes: float
    fingerprint: str | None = None

    @classmethod
    def measured(cls, calibration: Calibration) -> "Machine":
        return cls(
            source=f"measured here with {calibration.backend} on {calibration.device}",
            box=calibration.box,
            rates=calibration.rates,
            card_bytes=calibration.card_bytes or float("inf"),
            fingerprint=calibration.fingerprint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """All plans for jobs with guidance and for jobs without, the chosen ones first."""

    workload: Workload
    machine: Machine
    wire: str
    aim: Aim
    guided: list[Forecasted]
    plain: list[Forecasted]

    @classmethod
    def of(cls, workload: Workload, machine: Machine, ranks: int, wire: str, aim: Aim) -> "Ranking":
        """`wire` is the codec that plans use. ValueError when the box is too small, or nothing fits."""
        tokens = workload.tokens()
        guided, plain = (
            Terms(
                codecs=(wire,),
                aim=aim,
                memory=lambda plan, branches=branches: workload.transformer.rank_bytes(tokens, branches, plan),  # type: ignore[misc]
                card_bytes=machine.card_bytes,
            )
            for branches in (2, 1)
        )
        model = workload.model(2, machine.rates)
        if aim == "latency":
            both = pair(model, machine.box, ranks, guided)
        else:
            single = replace(model, branches=1)
            both = (rank(model, machine.box, ranks, guided), rank(single, machine.box, ranks, plain))
        return cls(workload=workload, machine=machine, wire=wire, aim=aim, guided=both[0], plain=both[1])

    def confirmed(self, choices: Choices, dtype: str) -> "Ranking":
        """The same with the plans first that were kept for this workload on warm-up steps, and what they took."""
        lists = (
            with_choice(candidates, choices.get(self._key(candidates[0], guided, dtype)))
            for guided, candidates in ((True, self.guided), (False, self.plain))
        )
        return replace(self, guided=next(lists), plain=next(lists))

    def _key(self, first: Forecasted, guided: bool, dtype: str) -> str:
        work, ranks = self.workload, first.plan.ranks
        return choice_key(
            work.name, work.width, work.height, work.frames, guided=guided, ranks=ranks, dtype=dtype, wire=self.wire
        )

    def sentences(self) -> list[str]:
        """What was chosen and why, what it means for a whole video, and how to run it."""
        first, work = self.guided[0], self.workload
        alone = work.model(2, self.machine.rates).step_s
        told = [
            f"{first.plan.name} is chosen: {seconds(first.known_s)} a step, {seconds(first.known_s * work.steps)} for "
            f"{work.steps} steps, {alone * first.jobs / first.step_s:.2f} times one rank by the forecast; "
            f"{max(first.exposed_s, 0) / first.step_s:.0%} of a step waits for links."
        ]
        told += self._why()
        if first.jobs > 1:
            told.append(
                f"{first.jobs} jobs run side by side: --workers {first.jobs} --ranks {first.plan.ranks} "
                f"--parallel {first.plan.name}."
            )
        if first.cards != tuple(range(first.plan.ranks)):
            order = ",".join(map(str, first.cards))
            told.append(f"Islands are kept together with the cards in this order: CUDA_VISIBLE_DEVICES={order}.")
        if first.measured_s is None:
            told.append("The forecast counts attention, matrix products and links: a real step takes somewhat longer.")
        other = self.plain[0]
        told.append(f"Without guidance: {other.plan.name}, {seconds(other.known_s)} a step.")
        return told

    def _why(self) -> list[str]:
        first, *others = self.guided
        if first.measured_s is not None:
            return [f"It won on warm-up steps of the model; the forecast was {seconds(first.step_s)}."]
        best = min(others, key=lambda one: one.known_s / one.jobs, default=first)
        if best.known_s / best.jobs >= first.known_s / first.jobs:
            return []
        less = 1 - (best.known_s / best.jobs) / (first.known_s / first.jobs)
        return [
            f"{best.plan.name}{f' in {best.jobs} jobs' if best.jobs > 1 else ''} is forecast {less:.1%} faster, but "
            f"within {TIE:.0%} the simpler plan is taken."
        ]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        work, machine = self.workload, self.machine
        return {
            "model": work.name,
            "size": f"{work.width}x{work.height}",
            "frames": work.frames,
            "steps": work.steps,
            "tokens": work.tokens(),
            "box": {"source": machine.source, "fingerprint": machine.fingerprint, "cards": machine.box.ranks},
            "aim": self.aim,
            "one_rank_step_s": work.model(2, machine.rates).step_s,
            "chosen": {"guided": self.guided[0].plan.name, "plain": self.plain[0].plan.name},
            "why": self.sentences(),
            "guided": [entry(one) for one in self.guided],
            "plain": [entry(one) for one in self.plain],
        }


def with_choice(candidates: list[Forecasted], choice: Choice | None) -> list[Forecasted]:
    """The candidates with the kept one first; as they are when it is none of them."""
    kept = [replace(one, measured_s=choice.measured_s) for one in candidates if choice and one.plan == choice.plan][:1]
    return kept + [one for one in candidates if not kept or one.plan != kept[0].plan]


def entry(one: Forecasted) -> dict[str, Any]:
    return {
        "plan": one.plan.name,
        "digest": one.plan.digest,
        "cards": list(one.cards),
        "jobs": one.jobs,
        "layer_bytes": one.sent.bytes,
        "layer_messages": one.sent.messages,
        "step_s": one.step_s,
        "measured_s": one.measured_s,
        "exposed_s": one.exposed_s,
        "memory_bytes": one.memory_bytes,
    }


def seconds(value: float) -> str:
    """A duration with three figures that count."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s" if value < 1000 else f"{value / 60:.0f} min"
