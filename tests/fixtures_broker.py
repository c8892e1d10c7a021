"""A real Redis server for every room's tests: one process a session, emptied before each test that asks for it."""

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from redis import Redis

from videoserve.broker import Broker, EmbeddedRedis
from videoserve.types import Job


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The address of an empty Redis."""
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[Broker]:
    """A broker on an empty Redis, for tests marked `anyio`: leases of 10 s, 3 attempts, 60 s a point of priority."""
    broker = Broker.connect(redis_url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
    yield broker
    await broker.close()


@pytest.fixture
def make_job() -> Callable[..., Job]:
    """make_job("id", tenant=…, …) -> a Job; what is not said is that of a small video."""

    def job(job_id: str, **fields: object) -> Job:
        plan = {"image": "0" * 64, "last_image": None, "batch_key": "64x64x5"}
        told = {"kind": "video", "tenant": "t", "request": {}, "plan": plan, "created_at": 1000.0} | fields
        return Job.from_dict({"id": job_id} | told)

    return job
