"""What the routes of one API process work with. Made once in create_app, kept as `app.state.service`."""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from videoserve.broker import Broker
from videoserve.config import Settings
from videoserve.planning.card import ModelCard
from videoserve.planning.chat_model import ChatCard
from videoserve.planning.identity import Maker
from videoserve.planning.plan import estimate
from videoserve.storage.adapters import Adapters
from videoserve.storage.files import FileStore
from videoserve.types import Job, VideoPlan
from videoserve_cache.tiers import SharedCache

# Measured costs change slowly; a table this old is read again.
COSTS_FRESH_S: Final = 5.0
# A worker that starts tells what it is at once; one that is gone is told for some seconds all the same.
MAKERS_FRESH_S: Final = 1.0
# A picture of 100 megapixels takes over a gigabyte and several seconds to normalise; more of them wait.
NORMALISE_AT_ONCE: Final = 2
# A process each, of up to half a gigabyte.
CHECK_AT_ONCE: Final = 2


@dataclass
class Service:
    settings: Settings
    broker: Broker
    files: FileStore
    card: ModelCard
    adapters: Adapters
    # What chats are answered by, or the sentence that says why there are none.
    chat: ChatCard | str
    # The same store for the chat model; None where there is none.
    chat_adapters: Adapters | None = None
    # None where nothing is kept between requests.
    cache: SharedCache | None = None
    normalising: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NORMALISE_AT_ONCE))
    checking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHECK_AT_ONCE))
    # Adapters that are being uploaded, by tenant.
    uploads: Counter[str] = field(default_factory=Counter)
    _costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    _costs_read_at: float = float("-inf")
    _makers: tuple[Maker, ...] = ()
    _makers_read_at: float = float("-inf")

    def adapters_for(self, model: str | None) -> Adapters:
        """Of the chat model where that is named, else of the model of videos."""
        chat = self.chat_adapters
        return chat if chat is not None and model == chat.target.name else self.adapters

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

    async def makers(self) -> tuple[Maker, ...]:
        """What the ready workers are, as far as that decides about bits; none where nothing is kept."""
        if time.monotonic() - self._makers_read_at > MAKERS_FRESH_S:
            self._makers_read_at = time.monotonic()
            told = [
                Maker.from_dict(worker["maker"])
                for worker in await self.broker.workers()
                if worker["ready"] and worker.get("model") == self.card.name and worker.get("maker")
            ]
            self._makers = tuple(dict.fromkeys(told))
        return self._makers

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
