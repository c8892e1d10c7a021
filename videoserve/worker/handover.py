"""How a worker lets go of its jobs: handed back at a checkpoint when it drains or has lost a rank, failed with a reason
when it breaks."""

import asyncio
import logging
import time
from collections.abc import Awaitable

from videoserve.broker.broker import Broker
from videoserve.errors import FenceLost, ServeError
from videoserve.types import Event
from videoserve.worker.engine_thread import EngineThread
from videoserve.worker.lease import Held, Leases
from videoserve.worker.tally import Tally
from videoserve_kernels.comm.exchange import CommunicationError

log = logging.getLogger(__name__)

# Kept back from the time to drain, for handing jobs back without a fresh checkpoint.
RESERVE_S = 2.0
# Without its other ranks an engine has nothing to do but to write down where it is.
PART_S = 5.0


class Handover:
    """The last words about every held job. Unheard they cost time, not the job: its lease runs out."""

    def __init__(self, broker: Broker, thread: EngineThread, leases: Leases, tally: Tally):
        self._broker = broker
        self._thread = thread
        self._leases = leases
        self._tally = tally

    async def release_all(self, deadline: float) -> None:
        """Each job goes to a checkpoint and back to the queue; one in a long step goes without, before `deadline`."""
        await asyncio.gather(*(self._release(held, deadline - RESERVE_S) for held in self._leases))

    async def part_all(self, error: Exception) -> None:
        """Each job goes back to the queue from where it is, as in a drain: a rank that is gone is not its fault.

        One that has come no further since it was claimed may be what ends ranks: its attempt counts, with the reason.
        """
        reason = f"The worker lost a rank while it had this job: {told(error)}"
        until = time.monotonic() + PART_S
        await asyncio.gather(*(self._release(held, until, blame=reason) for held in self._leases))

    async def fail_all(self, error: Exception) -> None:
        """Ends the attempt of every job; others may do better, and the reason is kept."""
        message = f"The worker broke while it had this job: {told(error)}."
        for held in self._leases:
            self._let_go(held, "failed")
            await in_time(self._broker.fail(held.id, held.claim.fence, "worker_error", message, retry=True))

    async def _release(self, held: Held, until: float, blame: str = "") -> None:
        # Renewed and watched until then: a step may take longer than its lease, and its client may cancel it.
        try:
            async with asyncio.timeout(until - time.monotonic()):
                checkpoint = await self._thread.call(lambda engine: engine.suspend(held.id))
                if checkpoint is not None:
                    held.forward(Event(job_id=held.id, kind="checkpoint", data=checkpoint))
                await held.forwarder.flushed()
        # TimeoutError is one of OSError's kin; a disk in trouble is no more the job's fault than a long step.
        except (OSError, ServeError, CommunicationError) as error:
            extra = {"job": held.id, "reason": told(error)}
            log.warning("no fresh checkpoint; the job goes back to its last one", extra=extra)
        # It may have ended meanwhile.
        if self._leases.get(held.id) is held:
            self._let_go(held, "handed_back")
            if blame and not held.advanced:
                await in_time(self._broker.fail(held.id, held.claim.fence, "worker_error", blame, retry=True))
            else:
                await in_time(self._broker.release(held.id, held.claim.fence))

    def _let_go(self, held: Held, outcome: str) -> None:
        """Nothing more is told of the job here, and the engine is not asked to forget it: it may be broken."""
        held.given_up = True
        held.forwarder.close()
        self._leases.drop(held)
        self._tally.ended(held.id, outcome)


async def in_time(call: Awaitable[object]) -> None:
    """Makes a call that is better made than not, for at most RESERVE_S seconds."""
    try:
        async with asyncio.timeout(RESERVE_S):
            await call
    except (TimeoutError, FenceLost, ServeError) as error:
        log.warning("the store did not hear the last word", extra={"reason": told(error)})


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
