"""The one place that knows the state of every job. Nothing acknowledged here is lost while Redis keeps its log."""

from typing import Self

from videoserve.broker.apikeys import ApiKeyCalls
from videoserve.broker.calls import Policy
from videoserve.broker.durability import DurabilityCalls
from videoserve.broker.events import EventCalls
from videoserve.broker.glance import GlanceCalls
from videoserve.broker.janitor import JanitorCalls
from videoserve.broker.leases import LeaseCalls
from videoserve.broker.link import Link
from videoserve.broker.uploads import UploadCalls
from videoserve.broker.webhooks import WebhookCalls
from videoserve.broker.workers import WorkerCalls
from videoserve.config import Settings


class Broker(
    GlanceCalls,
    UploadCalls,
    LeaseCalls,
    EventCalls,
    WebhookCalls,
    ApiKeyCalls,
    WorkerCalls,
    JanitorCalls,
    DurabilityCalls,
):
    """All calls over one link to one Redis (6.2 or later, not a cluster).

    Every call waits for a Redis that is away, full or read-only, and then raises ServeError 503 "store_unavailable". A
    call that writes may be applied twice by that and has the effect of one.
    """

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        lease_s: float,
        max_attempts: int,
        aging_s: float,
        retention_s: float,
        retry_s: float = 5.0,
    ) -> Self:
        """`url` as redis:// or unix://; the rest as in the settings of the same names. The first call connects."""
        policy = Policy(lease_s=lease_s, max_attempts=max_attempts, aging_s=aging_s, retention_s=retention_s)
        return cls(Link(url, retry_s), policy)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The broker of a server whose `redis_url` is set."""
        assert settings.redis_url is not None
        return cls.connect(
            settings.redis_url,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            aging_s=settings.aging_s,
            retention_s=settings.retention_s,
        )

    async def ping(self) -> None:
        """Raises ServeError 503 when the store is away."""
        await self._link.patiently(lambda: self._link.short.ping())
