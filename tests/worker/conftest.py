"""What tests of the worker share: a Redis of their own, which some of them kill, and its files."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.chain_worker import open_broker
from videoserve.broker.broker import Broker
from videoserve.broker.server import EmbeddedRedis
from videoserve.storage.files import FileStore


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


@pytest.fixture
async def broker(redis: EmbeddedRedis) -> AsyncIterator[Broker]:
    broker = open_broker(redis)
    yield broker
    await broker.close()
