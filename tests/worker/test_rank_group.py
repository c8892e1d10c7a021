"""A worker of two real processes without a model: what happens to its jobs when one of them dies or stands still."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.rank_stand_in import chain_end
from videoserve.broker.broker import Broker
from videoserve.broker.server import EmbeddedRedis
from videoserve.config import EXIT_REFUSED, PREFIX
from videoserve.storage.files import FileStore
from videoserve.types import Job

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

RANKS = 2
# Of a group that has to be started first, on a busy machine.
PATIENCE_S = 180.0
STAND_IN = (sys.executable, "-c", "from tests.rank_stand_in import main; main()")


class Group:
    """The processes of one worker, started on `data` with the stand-in for a model."""

    def __init__(self, data: Path, redis_url: str, **settings: object) -> None:
        told = {
            "data": data,
            "redis_url": redis_url,
            "ranks": RANKS,
            "device": "cpu",
            "lease_s": 2.0,
            "max_attempts": 3,
        } | settings
        env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        env |= {PREFIX + name.upper(): str(value) for name, value in told.items()}
        self.data = data
        self._log = data.with_name(f"{data.name}.log")
        with self._log.open("w") as log:
            root = Path(__file__).parents[2]
            self.process = subprocess.Popen(STAND_IN, cwd=root, env=env, stderr=log)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def pid(self, rank: int) -> int:
        """Of the latest process of a rank."""
        return int([line["pid"] for line in self.events("rank started") if line["rank"] == rank][-1])

    def started(self) -> list[int]:
        return [line["pid"] for line in self.events("rank started")]

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def make_group(redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []
    # One Redis has its files in one place.
    files = tmp_path_factory.mktemp("files")

    def make(**settings: object) -> Group:
        data = tmp_path_factory.mktemp("group") / "data"
        data.mkdir()
        (data / "files").symlink_to(files)
        groups.append(Group(data, redis.url, **settings))
        return groups[-1]

    yield make
    for group in groups:
        if group.process.poll() is None:
            group.process.kill()
            group.process.wait()


@pytest.fixture(scope="module")
def group(make_group: Callable[..., Group]) -> Group:
    return make_group(collective_timeout_s=2.0)


@pytest.fixture
async def broker(redis: EmbeddedRedis) -> AsyncIterator[Broker]:
    broker = Broker.connect(redis.url, lease_s=2.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
    yield broker
    await broker.close()


async def submit(broker: Broker, text: str, steps: int, **plan: object) -> Job:
    plan = {"text": text, "steps": steps, "step_s": 0.02, "batch_key": "k"} | plan
    job = Job(id=uuid.uuid4().hex, kind="video", tenant="t", request={}, plan=plan, created_at=time.time())
    await broker.submit([job], idempotency=None, queue_limit=100, key_queue_limit=100)
    return job


async def state_when(broker: Broker, job: Job, reached: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await broker.get(job.id, None)
            assert found is not None
            if reached(found[1]):
                return found[1]
            await asyncio.sleep(0.01)


async def ended(broker: Broker, job: Job) -> Any:
    return await state_when(broker, job, lambda state: state.status in ("completed", "failed"))


def result(state: Any, group: Group) -> bytes:
    return FileStore(group.data / "files").read(state.outputs["video"].sha256)


async def test_both_ranks_make_a_job_and_nobody_else_can_reach_them(broker: Broker, group: Group) -> None:
    job = await submit(broker, "plain", 20)
    state = await ended(broker, job)
    assert (state.status, state.attempt) == ("completed", 1)
    assert result(state, group) == chain_end("plain", 20, RANKS)
    (worker,) = await broker.workers()
    assert (worker["ranks"], worker["parallel"], worker["restarts"]) == (RANKS, "auto", 0)
    assert worker["pid"] == group.pid(0)
    listening = [address for pid in (group.process.pid, *group.started()) for address in listens(pid)]
    # A pair of ranks at least, and each of its sockets on this machine's own interface.
    assert len(listening) >= RANKS
    assert set(listening) == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("rank", "number", "attempts"),
    [(1, signal.SIGKILL, 1), (0, signal.SIGKILL, 2), (1, signal.SIGSTOP, 1), (0, signal.SIGSTOP, 2)],
    ids=["a dead follower", "a dead leader", "a follower that stands still", "a leader that stands still"],
)
async def test_a_lost_rank_costs_time_and_no_job(
    broker: Broker, group: Group, rank: int, number: signal.Signals, attempts: int
) -> None:
    """All ranks are new ones afterwards. Only with rank 0 dies what could have given the job back: its lease ends."""
    job, other = await submit(broker, "lost", 80), await submit(broker, "other", 5)
    await state_when(broker, job, lambda state: state.progress >= 30)
    before = {group.pid(0), group.pid(1)}
    os.kill(group.pid(rank), number)
    state = await ended(broker, job)
    assert (state.status, state.attempt) == ("completed", attempts)
    assert result(state, group) == chain_end("lost", 80, RANKS)
    told = [event.data["step"] async for event in broker.events(job.id, 0) if event.kind == "progress"]
    # It went on from a checkpoint; from the very step where rank 0 lived to write one.
    assert told.count(1) == 1
    assert attempts > 1 or told == list(range(1, 81))
    assert (await ended(broker, other)).status == "completed"
    assert before.isdisjoint({group.pid(0), group.pid(1)})
    assert not any(alive(pid) for pid in before)
    assert group.process.poll() is None


async def test_an_idle_follower_that_stands_still_is_replaced_before_a_job_comes(broker: Broker, group: Group) -> None:
    before = group.pid(1)
    os.kill(before, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE_S):
        while not [w for w in await broker.workers() if w["pid"] == group.pid(0) != before and w["ready"]]:
            await asyncio.sleep(0.02)
        while alive(before):
            await asyncio.sleep(0.02)
    (worker,) = [w for w in await broker.workers() if w["pid"] == group.pid(0)]
    assert worker["restarts"] > 0
    state = await ended(broker, await submit(broker, "after", 5))
    assert (state.status, state.attempt) == ("completed", 1)


async def test_a_job_that_ends_ranks_wherever_it_is_taken_up_has_only_so_many_attempts(
    broker: Broker, group: Group
) -> None:
    fatal, other = await submit(broker, "fatal", 10, fatal=3), await submit(broker, "other", 5)
    state = await ended(broker, fatal)
    assert state.error["code"] == "attempts_exhausted"
    # The very first try is not among them: it brought the job from nothing to step 3.
    assert [reason["attempt"] for reason in state.reasons] == [1, 2, 3]
    assert all("The worker lost a rank while it had this job" in reason["sentence"] for reason in state.reasons)
    assert (await ended(broker, other)).status == "completed"


async def test_sigterm_hands_the_job_back_and_ends_every_process(broker: Broker, group: Group) -> None:
    job = await submit(broker, "drained", 200)
    await state_when(broker, job, lambda state: state.progress >= 20)
    assert group.end() == 0
    state = await state_when(broker, job, lambda state: True)
    assert (state.status, state.attempt) == ("queued", 0)
    assert state.checkpoint["step"] >= 40
    await gone(group.started())
    await broker.cancel(job.id, "t")


async def test_no_rank_outlives_an_agent_that_is_killed(broker: Broker, make_group: Callable[..., Group]) -> None:
    group = make_group()
    job = await submit(broker, "orphan", 10_000)
    await state_when(broker, job, lambda state: state.status == "in_progress")
    group.process.kill()
    await gone(group.started())
    await broker.cancel(job.id, "t")


async def test_ranks_that_cannot_run_are_not_tried_again(make_group: Callable[..., Group]) -> None:
    group = make_group(device="cuda:64")
    code = await asyncio.to_thread(group.process.wait, PATIENCE_S)
    assert code == EXIT_REFUSED
    assert len(group.started()) <= RANKS
    assert group.events("Device 'cuda:64' is not here: this machine has 0 CUDA devices.") or group.events(
        "Device 'cuda:65' is not here: this machine has 0 CUDA devices."
    )


def alive(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


async def gone(pids: list[int]) -> None:
    async with asyncio.timeout(10):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def listens(pid: int) -> list[str]:
    """The IPv4 addresses on which a process accepts connections; "::" stands for any of version 6."""
    sockets = set()
    with suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(os.readlink(entry))
    found = []
    for table, version in (("tcp", 4), ("tcp6", 6)):
        with suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                # 0A is LISTEN.
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    raw = bytes.fromhex(words[1].partition(":")[0])
                    found.append(".".join(str(byte) for byte in reversed(raw)) if version == 4 else "::")
    return found
