"""The dynamic programme: for every number of computed steps, which ones they should be."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from videoserve_cache.steps.calibration import Calibration
from videoserve_cache.steps.context import Decision
from videoserve_cache.steps.foresight import AnyForecast, slip, squares
from videoserve_cache.steps.guards import Guards
from videoserve_cache.steps.schedule import Schedule

# The computed steps of the running expert that the next forecast goes through, oldest first.
State = tuple[int, ...]


@dataclass(slots=True)
class Way:
    """The cheapest way to a state with a number of computed steps: its cost and the state before."""

    cost: float
    before: State | None


@dataclass(slots=True)
class Programme:
    """All plans that the guards allow, as ways from computed step to computed step.

    A way's cost is the sum over its gaps of the mean squared error that the gap adds at the end.
    """

    calibration: Calibration
    forecast: AnyForecast
    guards: Guards
    forced: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.forced = forced(self.calibration.schedule, self.guards)

    def plans(self) -> dict[int, str]:
        """The best plan for each number of computed steps that any plan has."""
        ways = self.ways()
        last = self.calibration.schedule.n_steps - 1
        ends: dict[int, State] = {}
        for state, counts in ways.items():
            for count, way in counts.items() if state[-1] == last else ():
                if count not in ends or way.cost < ways[ends[count]][count].cost:
                    ends[count] = state
        return {count: self.letters(ways, state, count) for count, state in sorted(ends.items())}

    def ways(self) -> dict[State, dict[int, Way]]:
        """The cheapest way to every state, by the number of computed steps."""
        gaps = self.gaps()
        costs = self.costs(list(gaps))
        ways: dict[State, dict[int, Way]] = {(0,): {1: Way(0.0, None)}}
        # A gap leads from an earlier step to a later one, so in this order every way is final when it is gone on from.
        for (state, until), after in sorted(gaps.items(), key=lambda gap: gap[0][0][-1]):
            reached = ways.setdefault(after, {})
            for count, way in ways[state].items():
                cost = way.cost + costs[state, until]
                if count + 1 not in reached or cost < reached[count + 1].cost:
                    reached[count + 1] = Way(cost, state)
        return ways

    def gaps(self) -> dict[tuple[State, int], State]:
        """Every state and next computed step that can follow it, with the state this leads to."""
        found: dict[tuple[State, int], State] = {}
        fresh: list[State] = [(0,)]
        known = set(fresh)
        while fresh:
            state = fresh.pop()
            for until in self.next_runs(state[-1]):
                after = self.after(state, until)
                found[state, until] = after
                if after not in known:
                    known.add(after)
                    fresh.append(after)
        return found

    def next_runs(self, run: int) -> Iterator[int]:
        """The computed steps that may follow this one."""
        furthest = min(run + 1 + self.guards.max_skips, self.calibration.schedule.n_steps - 1)
        for until in range(run + 1, furthest + 1):
            yield until
            if until in self.forced:
                return

    def after(self, state: State, until: int) -> State:
        experts = self.calibration.schedule.experts
        return (*state, until)[-self.forecast.depth :] if experts[until] == experts[state[-1]] else (until,)

    def costs(self, gaps: list[tuple[State, int]]) -> dict[tuple[State, int], float]:
        """The mean squared error that each gap adds."""
        rows = [slip(self.calibration.schedule, self.forecast, state, until, again=True) for state, until in gaps]
        means = squares(rows, self.calibration.grams(self.forecast.of)).mean(axis=1)
        return dict(zip(gaps, means.tolist(), strict=True))

    def letters(self, ways: dict[State, dict[int, Way]], state: State, count: int) -> str:
        """The plan that a way is."""
        letters = [Decision.SKIP.value] * self.calibration.schedule.n_steps
        at: State | None = state
        while at is not None:
            letters[at[-1]] = Decision.RUN.value
            at, count = ways[at][count].before, count - 1
        return "".join(letters)


def forced(schedule: Schedule, guards: Guards) -> set[int]:
    """The steps that the guards have computed in every plan."""
    starts = {schedule.first_of_expert(step) for step in range(schedule.n_steps)}
    warm = {start + index for start in starts for index in range(guards.warmup)}
    return {step for step in warm if step < schedule.n_steps} | {schedule.n_steps - 1}
