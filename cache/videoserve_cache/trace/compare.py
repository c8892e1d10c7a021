"""Several policies at several sizes on one trace, beside what none of them can save more than."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from videoserve_cache.trace.accesses import Accesses
from videoserve_cache.trace.bound import most_saved_s
from videoserve_cache.trace.file import read
from videoserve_cache.trace.policies import POLICIES
from videoserve_cache.trace.replay import Outcome, Replay
from videoserve_cache.trace.synthetic import SYNTHETIC, synthetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`capacity` in bytes. `most_s` is the bound in seconds; `outcomes` are by policy."""

    capacity: int
    most_s: float
    outcomes: dict[str, Outcome]

    def to_dict(self) -> dict[str, Any]:
        told = {name: asdict(outcome) | {"saved_share": outcome.total.share} for name, outcome in self.outcomes.items()}
        return {"capacity": self.capacity, "most_saved_s": self.most_s, "policies": told}


def accesses_of(trace: str) -> Accesses:
    """Of the file `trace`, or of the package's own where it is "synthetic". Raises ValueError, a sentence."""
    return Accesses.of(synthetic() if trace == SYNTHETIC else read(Path(trace)))


def compare(accesses: Accesses, capacities: Sequence[int], policies: Sequence[str]) -> Iterator[Comparison]:
    """Raises ValueError, a sentence, for a policy that does not exist and a trace in which nothing was asked for."""
    for name in policies:
        if name not in POLICIES:
            raise ValueError(f"There is no policy {name!r}; policies are {', '.join(POLICIES)}.")
    if not any(access.use == "ask" for access in accesses.all):
        raise ValueError("In this trace nothing was asked for whose size and cost are known.")
    for capacity in capacities:
        outcomes = {name: Replay(POLICIES[name](), capacity).run(accesses.all) for name in policies}
        yield Comparison(capacity=capacity, most_s=most_saved_s(accesses.all, capacity), outcomes=outcomes)
