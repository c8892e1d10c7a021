"""The outbox: what must be told to clients' servers. finish and fail put a delivery in; it stays until settled."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.exceptions import ResponseError

from videoserve.broker.calls import Calls
from videoserve.broker.keys import KEYS
from videoserve.broker.link import SHORT_S

GROUP: Final = "deliverers"
# A consumer that holds nothing and has not asked for this long is a process that ended.
FORGET_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to one job's webhook_url.

    entry    the stream entry, for this attempt only
    event    "video.completed" or "video.failed"
    attempt  1 for the first
    """

    entry: str
    job_id: str
    event: str
    attempt: int

    @property
    def message_id(self) -> str:
        """The same for every attempt: receivers tell repetitions by it. No dots in it, they part what is signed."""
        return f"evt_{self.job_id}"


class WebhookCalls(Calls):
    async def next_deliveries(
        self, consumer: str, *, count: int = 10, timeout: float = 5.0, reclaim_s: float = 60.0
    ) -> list[Delivery]:
        """Deliveries to make now, waiting up to `timeout` seconds for one.

        Those that another consumer took more than `reclaim_s` seconds ago and never settled are handed out again. None
        when Redis is emptied meanwhile.
        """
        await self._link.transition(
            "webhook_due", once=False, group=GROUP, limit=count, forget_ms=round(1000 * FORGET_S)
        )
        try:
            entries = await self._entries(consumer, count, timeout, reclaim_s)
        except ResponseError as error:
            # The group went with all that Redis held. It is made with the next call.
            if not str(error).startswith("NOGROUP"):
                raise
            entries = []
        return [
            Delivery(entry=entry, job_id=told["job"], event=told["event"], attempt=int(told["attempt"]) + 1)
            for entry, told in entries
        ]

    async def _entries(
        self, consumer: str, count: int, timeout: float, reclaim_s: float
    ) -> list[tuple[str, dict[str, str]]]:
        async def reclaim() -> Any:
            return await self._link.short.xautoclaim(
                KEYS["webhooks"], GROUP, consumer, round(1000 * reclaim_s), count=count
            )

        block = max(1, round(1000 * timeout))

        async def read() -> Any:
            return await self._link.waiting.xreadgroup(
                GROUP, consumer, {KEYS["webhooks"]: ">"}, count=count, block=block
            )

        if entries := (await self._link.patiently(reclaim))[1]:
            return [*entries]
        reply = await self._link.patiently(read, within_s=timeout + SHORT_S)
        return [*reply[0][1]] if reply else []

    async def ack(self, delivery: Delivery) -> None:
        """The receiver has it; the job's state tells so."""
        await self._settle(delivery, delivered=True)

    async def retry_at(self, delivery: Delivery, when: float, error: str, *, max_attempts: int = 8) -> bool:
        """Hands the delivery out again at unix time `when`; after `max_attempts` it is given up. False then."""
        again = delivery.attempt < max_attempts
        await self._settle(delivery, delivered=False, error=error, at=when if again else None)
        return again

    async def webhook_secret(self, tenant: str) -> str:
        """What this tenant's messages are signed with, "whsec_" and base64; made when first asked for."""
        fresh = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()

        async def read() -> Any:
            async with self._link.short.pipeline(transaction=True) as pipe:
                pipe.hsetnx(KEYS["webhook_secrets"], tenant, fresh)
                pipe.hget(KEYS["webhook_secrets"], tenant)
                return await pipe.execute()

        return cast(str, (await self._link.patiently(read))[1])

    async def replace_webhook_secret(self, tenant: str) -> str:
        """A new secret in place of the old one, which signs nothing more."""
        await self._link.patiently(lambda: self._link.short.hdel(KEYS["webhook_secrets"], tenant))
        return await self.webhook_secret(tenant)

    async def _settle(self, delivery: Delivery, **outcome: Any) -> None:
        await self._link.transition(
            "webhook_settle",
            group=GROUP,
            entry=delivery.entry,
            job=delivery.job_id,
            event=delivery.event,
            attempt=delivery.attempt,
            **outcome,
        )
