"""A chat engine without a model, for tests of the worker and the API: it answers with what was last said to it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from videoserve.broker import Broker
from videoserve.chat_types import ChatPlan, ChoiceData, TokenLogprob, TokensData
from videoserve.errors import JobFailed
from videoserve.storage.files import FileStore
from videoserve.types import Appetite, Emit, Event, Job
from videoserve.worker.worker import Worker

# A token is this many letters.
PIECE = 3


@dataclass
class Answer:
    """One continuation of a job: the tokens it will have, and how many were told."""

    pieces: list[str]
    finish: str
    told: int = 0


@dataclass
class EchoEngine:
    """A step is one token of each continuation, the first once `begin_with` chats are there.

    `swap` maps letters of later answers to others: a model that differs.

    What was said last is the answer, with these words for other things: "refuse" (JobFailed at admission), "break" (in
    the middle), "endless" (never ends by itself).
    """

    kind: str = "chat"
    streams: int = 100
    step_s: float = 0.0
    begin_with: int = 1
    swap: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[Answer]] = field(default_factory=dict)
    plans: list[ChatPlan] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    def load(self) -> None:
        pass

    def admit(self, job: Job, checkpoint: dict[str, Any] | None) -> None:
        plan = ChatPlan.from_dict(job.plan)
        self.plans.append(plan)
        self.jobs.append(job)
        said = said_last(plan)
        if "refuse" in said:
            raise JobFailed("context_length_exceeded", "The prompt has 9000 tokens, and at most 8192 fit here.")
        text = said.translate(str.maketrans(self.swap))
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        cut = plan.max_tokens is not None and plan.max_tokens < len(pieces)
        finish = "length" if cut else "stop"
        self.held[job.id] = [Answer(pieces[: plan.max_tokens], finish) for _ in range(plan.n)]

    def step(self, emit: Emit) -> bool:
        time.sleep(self.step_s)
        if len(self.held) < self.begin_with:
            return bool(self.held)
        self.begin_with = 1
        for job_id in list(self.held):
            self._step(job_id, emit)
        return bool(self.held)

    def cancel(self, job_id: str) -> None:
        if self.held.pop(job_id, None):
            self.cancelled.append(job_id)

    def suspend(self, job_id: str) -> dict[str, Any] | None:
        self.held.pop(job_id, None)
        return None

    def wants(self) -> Appetite | None:
        room = self.streams - len(self.held)
        return Appetite(idle=True, room=room) if room > 0 else None

    def costs(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.held.clear()

    def _step(self, job_id: str, emit: Emit) -> None:
        answers = self.held[job_id]
        for index, answer in enumerate(answers):
            for data in self._grown(index, answer):
                emit(Event(job_id=job_id, kind="tokens", data=dict(data)))
        if any("break" in "".join(answer.pieces) and answer.told > 1 for answer in answers):
            del self.held[job_id]
            told = {"code": "not_finite", "message": "The model gave no finite number.", "retry": False}
            emit(Event(job_id=job_id, kind="failed", data=told))
        elif all(answer.told == len(answer.pieces) for answer in answers):
            del self.held[job_id]
            emit(Event(job_id=job_id, kind="done", data={"outputs": {}, "receipt": receipt(answers)}))

    def _grown(self, index: int, answer: Answer) -> Iterator[TokensData]:
        if answer.told == len(answer.pieces):
            return
        piece = answer.pieces[answer.told]
        if "endless" in "".join(answer.pieces) and answer.told == len(answer.pieces) - 1:
            answer.pieces.append(piece)
        answer.told += 1
        last = answer.told == len(answer.pieces)
        yield TokensData(
            index=index, start=answer.told - 1, text=piece, tokens=[number(piece)], logprobs=[chance(piece)],
            finish_reason=answer.finish if last else None,
        )  # type: ignore[typeddict-item]  # fmt: skip


class EchoThread(threading.Thread):
    """A chat worker around an EchoEngine with its own event loop and broker, for tests whose client blocks."""

    def __init__(self, redis_url: str, data: Path):
        super().__init__(daemon=True)
        self._url = redis_url
        self._files = FileStore(data / "files")
        self._running = threading.Event()

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        broker = Broker.connect(self._url, lease_s=10.0, max_attempts=3, aging_s=60.0, retention_s=3600.0)
        self._worker = Worker(broker, self._files, EchoEngine(), model="echo", lease_s=10.0, drain_s=5.0)
        self._running.set()
        await self._worker.run()
        await broker.close()

    def end(self) -> None:
        assert self._running.wait(10)
        self._loop.call_soon_threadsafe(self._worker.stop)
        self.join(timeout=20)
        assert not self.is_alive(), "The worker did not end."


def said_last(plan: ChatPlan) -> str:
    if plan.messages is not None:
        return str(plan.messages[-1]["content"])
    return (
        plan.prompt
        if plan.prompt is not None
        else "".join(chr(token) if token < 128 else "?" for token in plan.tokens or ())
    )


def number(piece: str) -> int:
    return sum(ord(letter) * 31**place for place, letter in enumerate(piece)) % 50_000


def chance(piece: str) -> TokenLogprob:
    said: Any = {"id": number(piece), "token": piece, "bytes": list(piece.encode()), "logprob": -0.5}
    return TokenLogprob(**said, top=[said, said | {"token": "?", "bytes": [63], "logprob": -1.5}])


def receipt(answers: list[Answer]) -> dict[str, Any]:
    choices = [
        ChoiceData(
            index=index,
            text="".join(answer.pieces),
            tokens=[number(piece) for piece in answer.pieces],
            logprobs=[chance(piece) for piece in answer.pieces],
            finish_reason=answer.finish,
            stop=None,
        )
        for index, answer in enumerate(answers)
    ]
    made = sum(len(answer.pieces) for answer in answers)
    usage = {"prompt_tokens": 7, "completion_tokens": made, "cached_tokens": 4}
    return {"choices": choices, "usage": usage, "first_token_s": 0.1, "total_s": 0.2, "preemptions": 0}
