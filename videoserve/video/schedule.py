"""Which admitted job gets the next unit of work, and which others may share it."""

from collections.abc import Callable, Iterator

from videoserve.types import Appetite
from videoserve.video.denoise import expert_of
from videoserve.video.run import Run

# Jobs held at once, besides the company of the one that runs: that one, and those that more urgent ones overtook.
HELD = 8


class Schedule:
    """The admitted runs. The one of lowest rank is served; a more urgent arrival takes over at the next unit.

    `limit(run)` says how many jobs of the run's shape may share a forward.
    """

    def __init__(self, limit: Callable[[Run], int]) -> None:
        self._runs: dict[str, Run] = {}
        self._limit = limit

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run) -> None:
        """Takes a run in; ValueError when its job is already here."""
        self.check(run.id)
        self._runs[run.id] = run

    def check(self, job_id: str) -> None:
        """ValueError when the job is already here."""
        if job_id in self._runs:
            raise ValueError(f"Job {job_id} has been admitted already.")

    def get(self, job_id: str) -> Run | None:
        return self._runs.get(job_id)

    def drop(self, job_id: str) -> Run | None:
        """Forgets a run and hands it out; None when it is not here."""
        return self._runs.pop(job_id, None)

    def pick(self) -> list[Run]:
        """The runs of the next unit of work: several only for a denoising step. Empty when nothing is left."""
        if not self._runs:
            return []
        first, *company = self._company(min(self._runs.values(), key=order))
        # Company that is not there yet catches up first: one encode now saves a forward at every step.
        late = next((run for run in company if run.stage == "encode"), None)
        if late is not None and first.stage == "denoise":
            return [late]
        if first.stage != "denoise":
            return [first]
        expert = expert_of(first)
        return [first, *(run for run in company if expert_of(run) == expert)]

    def _company(self, first: Run) -> list[Run]:
        """The run and, most urgent first, those that may share its steps."""
        limit = 1 if first.alone else self._limit(first)
        alike = [run for run in self._runs.values() if run is not first and fits(run, first)]
        return [first, *sorted(alike, key=order)[: limit - 1]]

    def appetite(self) -> Appetite | None:
        """What further job would run now; None when enough is held."""
        if not self._runs:
            return Appetite(idle=True)
        first = min(self._runs.values(), key=order)
        if len(self._runs) >= HELD + self._limit(first) - 1:
            return None
        room = (
            first.stage in ("encode", "denoise") and not first.alone and len(self._company(first)) < self._limit(first)
        )
        return Appetite(idle=False, batch_key=first.plan.batch_key if room else None, before=first.rank)


def order(run: Run) -> tuple[float, str]:
    return run.rank, run.id


def fits(run: Run, first: Run) -> bool:
    """Whether a run could share the steps of `first`, once it is encoded."""
    return run.plan.batch_key == first.plan.batch_key and not run.alone and run.stage in ("encode", "denoise")
