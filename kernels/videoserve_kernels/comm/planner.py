"""Which plan a box should run: every legal one forecast, the fastest first, the simpler one where they are close."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from videoserve_kernels.comm.counters import Traffic
from videoserve_kernels.comm.forecast import Model, step_seconds
from videoserve_kernels.comm.links import Box
from videoserve_kernels.comm.plan import ParallelPlan
from videoserve_kernels.comm.split import split
from videoserve_kernels.comm.volume import sent

Aim = Literal["latency", "throughput"]
# Two times this near to each other are alike: neither forecasts nor short measurements tell them apart.
TIE = 0.03
# Bytes/s of a link that adds nothing.
NO_TIME = 1e30
# How many of the forecast's first are worth a measurement.
MEASURED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasted:
    """A plan on a box: rank i has card `cards[i]`, and as many jobs as `jobs` run side by side, each with such ranks.

    `step_s` seconds a step of one job, `measured_s` the same where it was measured; `compute_s` is what is left of it
    on links that take no time, so that the difference is communication that nothing hides. `sent` is what the rank
    that sends most puts on the wire in one layer, all branches it works on together; `memory_bytes` what each holds.
    """

    plan: ParallelPlan
    cards: tuple[int, ...]
    jobs: int
    step_s: float
    compute_s: float
    sent: Traffic
    memory_bytes: float
    measured_s: float | None = None

    @property
    def known_s(self) -> float:
        return self.step_s if self.measured_s is None else self.measured_s

    @property
    def exposed_s(self) -> float:
        return self.step_s - self.compute_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a plan has to keep to.

    `codecs` it may use; `memory(plan)` bytes that a rank holds, of `card_bytes` that a card has; `cards` where the
    ranks sit already, None where that is open. For throughput as many jobs as it takes may run side by side.
    """

    codecs: tuple[str, ...] = ("none",)
    aim: Aim = "latency"
    memory: Callable[[ParallelPlan], float] | None = None
    card_bytes: float = float("inf")
    cards: tuple[int, ...] | None = None


ANY = Terms()


def rank(model: Model, box: Box, ranks: int, terms: Terms = ANY) -> list[Forecasted]:
    """All legal plans of `ranks` cards of the box; the one to take first, the others by time after it.

    For throughput the time is that of a step over the jobs that run side by side. ValueError when the box has fewer
    cards, or when nothing fits.
    """
    if not 1 <= ranks <= box.ranks:
        raise ValueError(f"{ranks} ranks are asked for and the box has {box.ranks} cards: 1 to {box.ranks} is allowed.")
    found: list[Forecasted] = []
    smallest = float("inf")
    for jobs in [jobs for jobs in range(1, ranks + 1) if ranks % jobs == 0] if terms.aim == "throughput" else [1]:
        for plan in legal_plans(model, ranks // jobs, terms.codecs):
            size = terms.memory(plan) if terms.memory else 0.0
            smallest = min(smallest, size)
            if size <= terms.card_bytes:
                for cards in [terms.cards] if terms.cards else placements(box, plan, jobs):
                    found.append(forecast(model, box, plan, cards, jobs, size))
    if not found:
        raise ValueError(
            f"No plan fits: the smallest needs {smallest / 1e9:.1f} GB a card, "
            f"and {terms.card_bytes / 1e9:.1f} are there."
        )
    first = choose(found)
    return [first, *sorted((one for one in found if one is not first), key=lambda one: one.step_s / one.jobs)]


def pair(model: Model, box: Box, ranks: int, terms: Terms = ANY) -> tuple[list[Forecasted], list[Forecasted]]:
    """What `rank` gives for jobs with guidance, and for jobs without it on the cards of the former's choice."""
    guided = rank(replace(model, branches=2), box, ranks, replace(terms, aim="latency"))
    sitting = replace(terms, aim="latency", cards=guided[0].cards)
    return guided, rank(replace(model, branches=1), box, ranks, sitting)


def choose(candidates: Sequence[Forecasted]) -> Forecasted:
    """The simplest of those that are within TIE of the fastest, measured times before forecast ones."""
    least = min(one.known_s / one.jobs for one in candidates)
    near = [one for one in candidates if one.known_s / one.jobs <= least * (1 + TIE)]
    return min(near, key=lambda one: (*complexity(one), one.known_s))


def confirm(candidates: Sequence[Forecasted], measure: Callable[[ParallelPlan], float]) -> list[Forecasted]:
    """The same candidates with the two that are forecast best measured, the winner of these first.

    `measure(plan)` gives the seconds of a warm-up step of the real model, the same number on every rank that calls
    this. Only plans on the cards of the first candidate are measured, those that the ranks sit on; where there is one
    only, there is nothing to find out.
    """
    here = [one for one in candidates if one.cards == candidates[0].cards and one.jobs == candidates[0].jobs]
    if len(here) == 1:
        return list(candidates)
    tried = [replace(one, measured_s=measure(one.plan)) for one in here[:MEASURED]]
    winner = choose(tried)
    untried = [one for one in candidates if all(one is not other for other in here[:MEASURED])]
    return [winner, *(one for one in tried if one is not winner), *untried]


def legal_plans(model: Model, ranks: int, codecs: Sequence[str]) -> Iterator[ParallelPlan]:
    """Every way to share a step of the model among so many ranks.

    Heads and tokens may be dealt out unevenly, but no rank may go without; branches have ranks of their own only where
    there are two. Head groups divide the heads of a Ulysses rank; a codec and the order of messages matter only where
    there are any.
    """
    layer = model.layer
    for cfg in (1, 2) if model.branches == 2 and ranks % 2 == 0 else (1,):
        shards = ranks // cfg
        for ulysses in [u for u in range(1, shards + 1) if shards % u == 0 and u <= layer.key_heads]:
            if shards > layer.length:
                continue
            heads = max(split(layer.key_heads, ulysses))
            for groups in [g for g in range(1, heads + 1) if heads % g == 0] if ulysses > 1 else [1]:
                for codec in codecs if shards > 1 else ("none",):
                    for staged in (True, False) if ulysses > 2 else (True,):
                        yield ParallelPlan(
                            cfg=cfg,
                            ring=shards // ulysses,
                            ulysses=ulysses,
                            head_groups=groups,
                            codec=codec,
                            staged=staged,
                        )


def placements(box: Box, plan: ParallelPlan, jobs: int) -> list[tuple[int, ...]]:
    """Which cards the ranks of the first job take: island after island, the largest first.

    So neighbours share one, and the innermost axis is Ulysses, which talks most. On a box whose cards are not in order
    of islands a job on all of them may also take them as they are numbered.
    """
    size = Counter(box.home(card) for card in range(box.ranks))
    cards = sorted(range(box.ranks), key=lambda card: (-size[box.home(card)], box.home(card), card))
    together, numbered = tuple(cards[: plan.ranks]), tuple(range(plan.ranks))
    return [together] if together == numbered or jobs > 1 else [together, numbered]


def forecast(model: Model, box: Box, plan: ParallelPlan, cards: tuple[int, ...], jobs: int, size: float) -> Forecasted:
    here = box.taking(cards)
    branches = model.branches // plan.cfg
    layer = replace(model.layer, batch=model.layer.batch * branches)
    shards = [sent(layer, plan, place) for place in range(plan.ring * plan.ulysses)]
    return Forecasted(
        plan=plan,
        cards=cards,
        jobs=jobs,
        step_s=step_seconds(model, plan, here),
        compute_s=step_seconds(model, plan, Box(ranks=plan.ranks, card=NO_TIME)),
        sent=max(shards, key=lambda traffic: traffic.bytes),
        memory_bytes=size,
    )


def complexity(one: Forecasted) -> tuple[int, ...]:
    """What a plan asks for that a simpler one does without: jobs, then lost bits, parts, pieces, an order.

    Branches on ranks of their own ask for nothing: they exchange once a step.
    """
    plan = one.plan
    both = int(plan.ring > 1 and plan.ulysses > 1)
    order = int(one.cards != tuple(range(plan.ranks)))
    lossy, at_once = int(plan.codec != "none"), int(not plan.staged)
    return one.jobs, lossy, both, int(plan.ring > 1), plan.head_groups, order, at_once, -plan.cfg
