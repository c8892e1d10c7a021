"""The worker around a chat engine: claims of its kind, tokens of a step in one call, chats that end early."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.chain_worker import ChainEngine, until, until_status, working
from tests.echo_engine import EchoEngine
from videoserve.broker.broker import Broker
from videoserve.chat_types import ChatPlan
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Event, Job

pytestmark = pytest.mark.anyio


def chat(text: str, **fields: Any) -> Job:
    plan = ChatPlan(model="echo", prompt=text, **fields).to_dict()
    return Job(id=uuid.uuid4().hex, kind="chat", tenant="t", request={}, plan=plan, created_at=time.time())


async def submit(broker: Broker, *jobs: Job) -> None:
    await broker.submit(jobs, queue_limit=100, key_queue_limit=100)


async def followed(broker: Broker, job: Job) -> list[tuple[int, Event]]:
    return [told async for batch in broker.follow(job.id) for told in batch]


def text_of(told: Sequence[tuple[int, Event]]) -> str:
    return "".join(event.data["text"] for _, event in told if event.kind == "tokens")


async def test_tokens_of_one_step_go_out_in_one_call(broker: Broker, files: FileStore) -> None:
    calls: list[int] = []
    tell = broker.tell

    async def counted(told: Any, *, call: str) -> set[str]:
        calls.append(len(told))
        return await tell(told, call=call)

    broker.tell = counted  # type: ignore[method-assign]
    jobs = [chat(f"{number:3}" + "abc" * 40) for number in range(20)]
    await submit(broker, *jobs)
    async with working(broker, files, EchoEngine(step_s=0.001, begin_with=20)):
        told = await asyncio.gather(*(followed(broker, job) for job in jobs))
    assert [text_of(events) for events in told] == [job.plan["prompt"] for job in jobs]
    for events in told:
        assert events[-1][1].kind == "done"
        assert [event.seq for _, event in events] == list(range(1, len(events) + 1))
        # One lease told it all; the end belongs to none.
        assert len({fence for fence, _ in events}) == 2
        assert events[-1][0] == 0
    # All have as many tokens; what piles up behind a slow call goes out in the next one.
    assert max(calls) == len(jobs)
    assert len(calls) <= 41


async def test_a_worker_takes_only_its_kind_and_as_much_as_it_has_room_for(broker: Broker, files: FileStore) -> None:
    engine = EchoEngine(streams=3)
    jobs = [chat("endless") for _ in range(5)]
    async with working(broker, files, ChainEngine(files)):
        await submit(broker, *jobs)
        async with working(broker, files, engine):
            await until(lambda: _is(len(engine.held) == 3))
            assert (await broker.depth("chat")) == {"queued": 2, "running": 3, "webhooks": 0}
            # One ends, another takes its place.
            await broker.cancel(next(iter(engine.held)))
            await until(lambda: _is(len(engine.cancelled) == 1 and len(engine.held) == 3))
            # Nobody lists chats.
            assert await broker.list("t") == ([], False)
            assert await broker.list("t", status="queued") == ([], False)
            for job in jobs:
                await broker.delete(job.id)
            await until(lambda: _is(not engine.held))


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_a_chat_that_nobody_wants_any_more_leaves_the_engine(broker: Broker, files: FileStore, how: str) -> None:
    engine = EchoEngine()
    job = chat("endless")
    await submit(broker, job)
    async with working(broker, files, engine):
        following = asyncio.create_task(followed(broker, job))
        await until(lambda: _is(job.id in engine.held))
        if how == "cancelled":
            await broker.cancel(job.id)
            assert (await until_status(broker, job, "failed")).error["code"] == "cancelled"
        else:
            await broker.delete(job.id)
        told = await following
        await until(lambda: _is(engine.cancelled == [job.id]))
    assert (told[-1][1].kind, told[-1][1].data["code"]) == ("failed", "cancelled")


async def test_what_a_lease_that_has_passed_on_tells_is_not_told(broker: Broker, files: FileStore) -> None:
    lost, kept = chat("lost"), chat("kept")
    await submit(broker, lost, kept)
    claims = [await broker.claim("chat", "w", Appetite(idle=True)) for _ in range(2)]
    assert claims[0] is not None
    assert claims[1] is not None
    await broker.release(lost.id, claims[0].fence)
    event = Event(job_id="", kind="tokens", data={"text": "x"})
    assert await broker.tell([(claim.job.id, claim.fence, [event, event]) for claim in claims if claim]) == {lost.id}
    await broker.finish(kept.id, claims[1].fence, {}, {})
    assert text_of(await followed(broker, kept)) == "xx"
    again = await broker.claim("chat", "other", Appetite(idle=True))
    assert again is not None
    await broker.tell([(lost.id, again.fence, [event])])
    await broker.finish(lost.id, again.fence, {}, {})
    told = await followed(broker, lost)
    assert [fence for fence, _ in told] == [again.fence, 0]


async def test_a_chat_that_is_refused_fails_with_the_engines_words(broker: Broker, files: FileStore) -> None:
    job = chat("refuse this")
    await submit(broker, job)
    async with working(broker, files, EchoEngine()):
        [(_, event)] = await followed(broker, job)
    assert event.data["code"] == "context_length_exceeded"


async def _is(condition: bool) -> bool:
    return condition


async def test_a_drain_lets_chats_end_and_hands_the_others_back(broker: Broker, files: FileStore) -> None:
    short, endless = chat("abc" * 40), chat("endless")
    await submit(broker, short, endless)
    engine = EchoEngine(step_s=0.01, begin_with=2)
    async with working(broker, files, engine):
        await until(lambda: _is(len(engine.held) == 2))
    # It has stopped: the one is answered, the other one waits for the next worker.
    assert text_of(await followed(broker, short)) == "abc" * 40
    _, state = await broker.get(endless.id)
    assert (state.status, state.attempt) == ("queued", 0)
