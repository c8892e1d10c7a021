"""Webhooks: told when a video has ended, signed, tried again until heard, and never sent to a private address."""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
import time
from typing import Any, Final

import httpx

from videoserve.api.addresses import request_to, resolve
from videoserve.broker.broker import Broker
from videoserve.broker.webhooks import Delivery
from videoserve.config import Settings
from videoserve.errors import InvalidField, ServeError
from videoserve.metrics import Meter

log = logging.getLogger(__name__)

PARAM: Final = "webhook_url"
SECRET_PREFIX: Final = "whsec_"
URL_LENGTH: Final = 2048
TIMEOUT_S: Final = 15.0
# How long a delivery may stay with one process before another takes it over; longer than any attempt lasts.
RECLAIM_S: Final = 4 * TIMEOUT_S
# Seconds from each failed attempt to the next one; after the last the delivery is given up.
BACKOFF_S: Final = (5.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 12 * 3600.0)
ATTEMPTS: Final = len(BACKOFF_S) + 1
AT_ONCE: Final = 16


async def validate_url(url: str, settings: Settings) -> None:
    """Raises InvalidField when videos may not be announced at `url`. Checked again, and for good, at each delivery."""
    if len(url) > URL_LENGTH:
        raise InvalidField(PARAM, f"{PARAM} has {len(url)} characters; at most {URL_LENGTH} are allowed.")
    await resolve(url, param=PARAM, private_hosts=settings.private_hosts)


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The webhook-signature header of Standard Webhooks (v1): HMAC-SHA256 over id, timestamp and body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


class Courier:
    """Makes the deliveries that the broker holds. Every API process runs one; each delivery is given to one of them.

    A receiver hears of an event at least once: a process that dies between the answer and its record leaves the
    delivery to another. The webhook-id is the same each time.
    """

    def __init__(self, broker: Broker, settings: Settings, meter: Meter, consumer: str):
        self._broker = broker
        self._settings = settings
        self._meter = meter
        self._consumer = consumer
        self._client = httpx.AsyncClient(
            trust_env=False, timeout=TIMEOUT_S, follow_redirects=False, headers={"User-Agent": "videoserve"}
        )

    async def run(self) -> None:
        """Delivers until cancelled."""
        slots = asyncio.Semaphore(AT_ONCE)
        async with self._client, asyncio.TaskGroup() as group:
            while True:
                await slots.acquire()
                slots.release()
                for delivery in await self._next():
                    await slots.acquire()
                    task = group.create_task(self._attend(delivery))
                    task.add_done_callback(lambda _: slots.release())

    async def _next(self) -> list[Delivery]:
        try:
            return await self._broker.next_deliveries(self._consumer, reclaim_s=RECLAIM_S)
        except ServeError as error:
            log.warning("the outbox cannot be read", extra={"reason": error.message})
            await asyncio.sleep(1.0)
            return []

    async def _attend(self, delivery: Delivery) -> None:
        try:
            outcome = await self._deliver(delivery)
        except ServeError as error:
            # Not settled: the delivery is handed out again after RECLAIM_S.
            log.warning("a delivery could not be settled", extra={"job": delivery.job_id, "reason": error.message})
            outcome = "unsettled"
        except Exception:
            # One delivery that trips over a mistake of ours must not end all others.
            log.exception("a delivery broke off", extra={"job": delivery.job_id})
            outcome = "error"
        self._meter.count("videoserve_webhooks", outcome=outcome)

    async def _deliver(self, delivery: Delivery) -> str:
        found = await self._broker.get(delivery.job_id)
        if found is None or found[0].webhook_url is None:
            # Deleted by its client, who no longer wants to hear of it.
            await self._broker.ack(delivery)
            return "deleted"
        job, state = found
        try:
            error = await self._post(found[0].webhook_url, event(delivery, state.completed_at), job.tenant)
        except ServeError:
            raise
        except Exception:
            # Settled like any failure: unsettled it would be handed out again for ever.
            log.exception("a delivery could not be made", extra={"job": job.id})
            error = "The server failed to make the delivery."
        if error is None:
            await self._broker.ack(delivery)
            return "delivered"
        when = time.time() + pause_s(delivery.attempt)
        again = await self._broker.retry_at(delivery, when, error, max_attempts=ATTEMPTS)
        told = {"job": job.id, "attempt": delivery.attempt, "reason": error, "again": again}
        log.warning("a webhook was not delivered", extra=told)
        return "failed" if again else "given_up"

    async def _post(self, url: str, message: dict[str, Any], tenant: str) -> str | None:
        """Why the receiver has not taken the message; None when it has."""
        body = json.dumps(message, separators=(",", ":")).encode()
        now = int(time.time())
        secret = await self._broker.webhook_secret(tenant)
        headers = {
            "Content-Type": "application/json",
            "webhook-id": message["id"],
            "webhook-timestamp": str(now),
            "webhook-signature": sign(secret, message["id"], now, body),
        }
        try:
            async with asyncio.timeout(TIMEOUT_S):
                target = await resolve(url, param=PARAM, private_hosts=self._settings.private_hosts)
                request = request_to(self._client, "POST", target, content=body, headers=headers)
                response = await self._client.send(request, stream=True)
                await response.aclose()
        except InvalidField as error:
            return error.message
        except TimeoutError:
            return f"No answer within {TIMEOUT_S:g} s."
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"The connection failed: {type(error).__name__}."
        if response.is_success:
            return None
        redirects = " Redirects are not followed." if response.is_redirect else ""
        return f"The answer was {response.status_code}.{redirects}"


def event(delivery: Delivery, ended_at: float | None) -> dict[str, Any]:
    """The message; its id is the same in every attempt."""
    return {
        "id": delivery.message_id,
        "object": "event",
        "type": delivery.event,
        "created_at": int(ended_at or time.time()),
        "data": {"id": delivery.job_id},
    }


def pause_s(attempt: int) -> float:
    """Seconds until the attempt after `attempt` (from 1), spread so that many deliveries do not come back at once."""
    return BACKOFF_S[min(attempt, len(BACKOFF_S)) - 1] * random.uniform(0.8, 1.2)
