"""What this process has used and counted since it last told the index: told in one call, off the critical path."""

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Told:
    """uses: sha256 → how often; counts: name → number, as `stats` shows them."""

    uses: Counter[str] = field(default_factory=Counter)
    counts: dict[str, float] = field(default_factory=dict)


class Touches:
    """Thread-safe. Those that cannot be told are kept until they can: they are few, one number a name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = Told()

    def use(self, sha: str) -> None:
        with self._lock:
            self._since.uses[sha] += 1

    def count(self, name: str, by: float = 1) -> None:
        with self._lock:
            self._since.counts[name] = self._since.counts.get(name, 0) + by

    def take(self) -> Told:
        with self._lock:
            taken, self._since = self._since, Told()
        return taken

    def give_back(self, told: Told) -> None:
        with self._lock:
            self._since.uses.update(told.uses)
            for name, number in told.counts.items():
                self._since.counts[name] = self._since.counts.get(name, 0) + number
