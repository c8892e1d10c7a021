"""What every group of broker calls stands on."""

from dataclasses import dataclass

from videoserve.broker.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Numbers the transitions go by; seconds, and attempts until a job is given up."""

    lease_s: float
    max_attempts: int
    aging_s: float
    retention_s: float


class Calls:
    """A group of calls over one link. Broker is all the groups together."""

    def __init__(self, link: Link, policy: Policy):
        self._link = link
        self._policy = policy
