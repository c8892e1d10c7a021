"""Jobs, queue, leases and events on Redis."""

from videoserve.broker.apikeys import digest_key
from videoserve.broker.broker import Broker
from videoserve.broker.jobs import QueueFull
from videoserve.broker.server import EmbeddedRedis, find_server
from videoserve.broker.state import Claim, Done, JobState
from videoserve.broker.webhooks import Delivery

__all__ = [
    "Broker",
    "Claim",
    "Delivery",
    "Done",
    "EmbeddedRedis",
    "JobState",
    "QueueFull",
    "digest_key",
    "find_server",
]
