"""A worker: one engine in its own thread, fed from the broker, its results fenced."""

import asyncio
import logging
import time
from collections.abc import Mapping

from videoserve.background import Background, first_of
from videoserve.broker.broker import Broker
from videoserve.broker.patience import until_stored
from videoserve.broker.state import Claim
from videoserve.errors import JobFailed, ServeError
from videoserve.janitor import keep_clean
from videoserve.metrics import Meter
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Engine, Event
from videoserve.worker.engine_thread import EngineThread
from videoserve.worker.forward import Ending, Forwarder
from videoserve.worker.handover import RESERVE_S, Handover, in_time, told
from videoserve.worker.heartbeat import Heartbeat
from videoserve.worker.lease import Held, Leases
from videoserve.worker.storing import blames_store, until_storing
from videoserve.worker.tally import Tally
from videoserve.worker.teller import Teller
from videoserve_kernels.comm.exchange import CommunicationError

log = logging.getLogger(__name__)

# How long an idle worker waits for a submission before it looks for expired leases again.
IDLE_WAIT_S = 1.0
# A busy one asks for more work at most this often.
BUSY_WAIT_S = 0.05


class CannotLoad(Exception):
    """The model, device or dtype cannot be used, as a sentence: another try would end the same way."""


class Worker:
    """Claims jobs for one engine and answers for them until they end, are cancelled, or pass to another worker."""

    def __init__(
        self,
        broker: Broker,
        files: FileStore,
        engine: Engine,
        *,
        model: str,
        lease_s: float,
        drain_s: float,
        shown: Mapping[str, object] | None = None,
        meter: Meter | None = None,
    ):
        """`shown` is what its heartbeat tells of it besides: how many ranks it has, for one. `meter` has what its
        engine counts, if it does.
        """
        self._broker = broker
        self._files = files
        self._drain_s = drain_s
        self._thread = EngineThread(engine, self._on_event)
        self._background = Background()
        self._teller = Teller(broker, self._background)
        self._leases = Leases(broker, lease_s, self._on_cancelled, self._on_lost)
        self._tally = Tally(engine.kind, meter or Meter())
        self._alive = Heartbeat(broker, engine.kind, model, self._leases.ids, self._tally.meter, shown or {})
        self._handover = Handover(broker, self._thread, self._leases, self._tally)
        self._claiming: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._store_fails = False

    @property
    def id(self) -> str:
        return self._alive.worker_id

    def stop(self) -> None:
        """Begins to drain; `run` returns within `drain_s`."""
        self._stop.set()
        self._alive.set_ready(False)

    def part(self) -> None:
        """Another rank of this worker is gone: the jobs go back to the queue, and `run` raises CommunicationError."""
        self._thread.part(CommunicationError("another rank of the worker has ended."))
        self._alive.set_ready(False)

    async def run(self) -> None:
        """Works until `stop`. Raises what broke the engine or one of the loops, after handing the jobs back."""
        self._thread.start()
        self._background.spawn(self._alive.run())
        self._background.spawn(self._work())
        try:
            await first_of(self._stop, self._background.broken, self._thread.failed, self._thread.parted)
            await self._drain(time.monotonic() + self._drain_s)
        except CannotLoad:
            raise
        except CommunicationError as error:
            await self._part(error)
            raise
        except Exception as error:
            await self._handover.fail_all(error)
            raise
        finally:
            self._background.cancel()

    async def _work(self) -> None:
        began = time.monotonic()
        try:
            await self._thread.call(lambda engine: engine.load())
        except ValueError as error:
            raise CannotLoad(str(error)) from error
        await self._publish_costs()
        if self._stop.is_set():
            return
        self._alive.set_ready(True)
        log.info("ready", extra={"worker": self.id, "load_s": round(time.monotonic() - began, 2)})
        self._background.spawn(self._leases.renew())
        self._background.spawn(self._leases.watch())
        self._background.spawn(keep_clean(self._broker, self._files))
        self._claiming = self._background.spawn(self._claim_jobs())

    async def _claim_jobs(self) -> None:
        while not self._stop.is_set():
            appetite = await self._thread.call(lambda engine: engine.wants())
            if self._store_fails:
                await self._until_storing()
            elif not await self._claim_for(appetite) and not self._stop.is_set():
                await self._until_worth_asking(appetite)

    async def _until_storing(self) -> None:
        """Claims nothing while no job could keep what it makes."""
        self._alive.set_ready(False)
        waiting = asyncio.ensure_future(until_storing(self._files))
        await first_of(self._stop, waiting)
        waiting.cancel()
        self._store_fails = False
        self._alive.set_ready(not self._stop.is_set())

    async def _claim_for(self, appetite: Appetite | None) -> bool:
        """Takes what there is of what the engine wants, all at one boundary between its steps; False for nothing."""
        taking: list[asyncio.Task[None]] = []
        while len(taking) < (appetite.room if appetite else 0):
            claim = await self._claim(appetite)
            if claim is None:
                break
            taking.append(self._background.spawn(self._take(claim)))
        await asyncio.gather(*taking)
        return bool(taking)

    async def _claim(self, appetite: Appetite | None) -> Claim | None:
        if appetite is None or self._stop.is_set():
            return None
        return await until_stored(lambda: self._broker.claim(self._alive.kind, self.id, appetite))

    async def _until_worth_asking(self, appetite: Appetite | None) -> None:
        if appetite is not None and appetite.idle:
            news = until_stored(lambda: self._broker.wait_for_work(self._alive.kind, IDLE_WAIT_S))
        else:
            await asyncio.sleep(BUSY_WAIT_S)
            news = self._thread.boundary(IDLE_WAIT_S)
        waiting = asyncio.ensure_future(news)
        await first_of(self._stop, waiting)
        waiting.cancel()

    async def _take(self, claim: Claim) -> None:
        job = claim.job
        # Its lease ran out while the store was away, and this very worker is the one that claims it again.
        earlier = self._leases.get(job.id)
        if earlier is not None:
            await self._abandon(earlier)
        held = Held(claim=claim, forwarder=Forwarder(self._broker, self._files, claim, self._teller))
        self._leases.add(held)
        self._tally.claimed(job.id)
        self._background.spawn(self._answer_for(held))
        log.info("claimed", extra={"job": job.id, "attempt": claim.attempt, "fence": claim.fence})
        loop = asyncio.get_running_loop()

        def admit(engine: Engine) -> None:
            # Called in the engine's thread, so that it comes between the last event of an earlier lease of the same
            # job and the first of this one.
            loop.call_soon_threadsafe(held.set_admitted)
            engine.admit(job, claim.checkpoint)

        try:
            await self._thread.call(admit)
        except JobFailed as error:
            self._report(held, _failed(job.id, error.code, error.message, error.retry))
        except ServeError as error:
            self._report(held, _failed(job.id, error.code, error.message, True))
        except CommunicationError:
            raise
        except Exception as error:
            log.exception("the engine did not take the job", extra={"job": job.id})
            self._report(held, _failed(job.id, "worker_error", f"The job could not start: {told(error)}.", True))

    async def _answer_for(self, held: Held) -> None:
        """The life of a held job: its events until it has ended or its fence is lost."""
        if await held.forwarder.run() is Ending.LOST:
            await self._abandon(held)
            return
        self._leases.drop(held)
        self._tally.ended(held.id, held.forwarder.outcome)
        log.info("job ended", extra={"job": held.id, "outcome": held.forwarder.outcome})
        await self._publish_costs()

    async def _abandon(self, held: Held) -> None:
        """The job belongs to another worker, or to nobody: stop computing it and report nothing more."""
        if held.given_up:
            return
        held.given_up = held.stopping = True
        held.forwarder.close()
        self._leases.drop(held)
        self._tally.ended(held.id, "lost")
        await self._thread.call(lambda engine: engine.cancel(held.id))
        log.warning("fence lost, the job is not ours any more", extra={"job": held.id, "fence": held.claim.fence})

    def _on_lost(self, held: Held) -> None:
        self._background.spawn(self._abandon(held))

    def _on_cancelled(self, held: Held) -> None:
        self._background.spawn(self._cancel(held))

    async def _cancel(self, held: Held) -> None:
        await self._thread.call(lambda engine: engine.cancel(held.id))
        held.forwarder.add(_failed(held.id, "cancelled", "The job was cancelled.", False))

    def _on_event(self, event: Event) -> None:
        held = self._leases.get(event.job_id)
        if held is not None and held.admitted:
            self._tally.saw(event)
            self._report(held, event)

    def _report(self, held: Held, event: Event) -> None:
        # Before anybody hears of it: the next claim may come at once.
        self._store_fails = self._store_fails or blames_store(event)
        held.forward(event)

    async def _publish_costs(self) -> None:
        costs = await self._thread.call(lambda engine: engine.costs())
        if costs:
            await until_stored(lambda: self._broker.save_costs(self._alive.model, costs))

    async def _drain(self, deadline: float) -> None:
        """Takes no more jobs, gives back those it has, and closes the engine if that can be done.

        Chats have no checkpoint: as many as can be are answered first.
        """
        began = time.monotonic()
        log.info("draining", extra={"worker": self.id, "jobs": self._leases.ids()})
        await self._no_more_claims(deadline - RESERVE_S - time.monotonic())
        if self._alive.kind == "chat":
            await self._leases.emptied(deadline - 2 * RESERVE_S)
        await self._handover.release_all(deadline)
        await self._thread.stop(1.0)
        await in_time(self._broker.farewell(self.id))
        log.info("drained", extra={"worker": self.id, "drain_s": round(time.monotonic() - began, 2)})

    async def _part(self, error: CommunicationError) -> None:
        """Without its other ranks the engine computes nothing: gives back what it has."""
        log.error("a rank is lost, the jobs go back to the queue", extra={"reason": str(error), "worker": self.id})
        self._stop.set()
        self._thread.part(error)
        await self._no_more_claims(RESERVE_S)
        await self._handover.part_all(error)
        await in_time(self._broker.farewell(self.id))

    async def _no_more_claims(self, timeout_s: float) -> None:
        if self._claiming is not None:
            await asyncio.wait({self._claiming}, timeout=timeout_s)


def _failed(job_id: str, code: str, message: str, retry: bool) -> Event:
    return Event(job_id=job_id, kind="failed", data={"code": code, "message": message, "retry": retry})
