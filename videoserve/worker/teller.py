"""Tokens of all chats of a step on their way to the broker, in one call."""

import asyncio
from collections.abc import Sequence

from videoserve.background import Background
from videoserve.broker.broker import Broker
from videoserve.broker.leases import new_call
from videoserve.broker.patience import until_stored
from videoserve.broker.state import Claim
from videoserve.errors import FenceLost
from videoserve.types import Event

Waiting = tuple[Claim, Sequence[Event], asyncio.Future[None]]


class Teller:
    """What several forwarders have to tell at the same moment goes out together, and so does what comes meanwhile."""

    def __init__(self, broker: Broker, background: Background):
        self._broker = broker
        self._background = background
        self._waiting: list[Waiting] = []
        self._busy = False

    async def tell(self, claim: Claim, events: Sequence[Event]) -> None:
        """Returns once the broker has them; waits for a store that is away. Raises FenceLost."""
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, events, told))
        if not self._busy:
            self._busy = True
            self._background.spawn(self._send())
        await told

    async def _send(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._send_batch(batch)
        finally:
            self._busy = False

    async def _send_batch(self, batch: Sequence[Waiting]) -> None:
        entries = [(claim.job.id, claim.fence, events) for claim, events, _ in batch]
        call = new_call()
        lost = await until_stored(lambda: self._broker.tell(entries, call=call))
        for claim, _, told in batch:
            # Whoever waited for it may have been cancelled.
            if told.done():
                continue
            if claim.job.id in lost:
                told.set_exception(FenceLost(f"The lease {claim.fence} of job {claim.job.id} has passed on."))
            else:
                told.set_result(None)
