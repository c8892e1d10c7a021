"""What the routes of one API process work with. Made once in create_app, kept as `app.state.service`."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.planning.card import ModelCard
from videoserve.planning.plan import estimate
from videoserve.storage.files import FileStore
from videoserve.types import Job, VideoPlan

# Measured costs change slowly; a table this old is read again.
COSTS_FRESH_S: Final = 5.0
# A picture of 100 megapixels takes over a gigabyte and several seconds to normalise; more of them wait.
NORMALISE_AT_ONCE: Final = 2


@dataclass
class Service:
    settings: Settings
    broker: Broker
    files: FileStore
    card: ModelCard
    normalising: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NORMALISE_AT_ONCE))
    _costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    _costs_read_at: float = float("-inf")

    async def costs(self) -> Mapping[str, Mapping[str, float]]:
        """What the workers measured, seconds by shape key."""
        if self.known_costs() is None:
            # Set first: those who come while this reads go on with what there is.
            self._costs_read_at = time.monotonic()
            costs = await self.broker.costs(self.card.name)
            # The same object as long as nothing changed, so that what was made of it can be known by it.
            if costs != self._costs:
                self._costs = costs
        return self._costs

    def known_costs(self) -> Mapping[str, Mapping[str, float]] | None:
        """What `costs` answers without asking Redis; None where it has to ask."""
        return self._costs if time.monotonic() - self._costs_read_at <= COSTS_FRESH_S else None

    async def parallel(self, plan: VideoPlan) -> dict[str, Any] | None:
        """How the ranks of a ready worker share a video like this one, as its heartbeat says; None where none does."""
        branches = "guided" if plan.guidance > 1 else "plain"
        for worker in await self.broker.workers():
            if worker["ready"] and worker.get("model") == plan.model and worker.get("plans"):
                return {"ranks": worker["ranks"], **worker["plans"][branches]}
        return None

    def work_s(self, job: Job, costs: Mapping[str, Mapping[str, float]]) -> float | None:
        """Estimated seconds of work of a job by `costs`; None before anything was measured."""
        return estimate(VideoPlan.from_dict(job.plan), costs)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(service_of)]
