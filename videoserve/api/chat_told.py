"""What a chat has grown by, as its client is told it: once, in order, and honestly when a worker was lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from videoserve.broker import Broker
from videoserve.chat_types import ChatReceipt, FinishReason, TokenLogprob, TokensData
from videoserve.errors import ServeError
from videoserve.types import Job

# The codes of failed jobs that are not the server's fault, and their HTTP status.
STATUS = {
    "invalid_value": 422,
    "context_length_exceeded": 400,
    "cancelled": 409,
    "deadline_exceeded": 408,
    "adapter_unusable": 409,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """New text of one continuation, and the logprobs of its new tokens where they are known."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None


@dataclass(slots=True)
class Told:
    """One continuation as it was told; `at_token` and `at_text` are how far the attempt that speaks has come.

    An attempt after the first begins anew, and with the same seed it says the same: that much is not told twice.
    """

    index: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: FinishReason | None = None
    at_token: int = 0
    at_text: int = 0

    def begin_again(self) -> None:
        self.at_token = self.at_text = 0

    def take(self, data: TokensData) -> Grown:
        """What is new in it. Raises ServeError 500 when it is not the rest of what was told."""
        tokens, text = data["tokens"], data["text"]
        known = self.tokens[self.at_token : self.at_token + len(tokens)]
        known_text = self.text[self.at_text : self.at_text + len(text)]
        if data["start"] != self.at_token or tokens[: len(known)] != known or text[: len(known_text)] != known_text:
            raise lost()
        self.at_token += len(tokens)
        self.at_text += len(text)
        new, new_text = tokens[len(known) :], text[len(known_text) :]
        finish = data["finish_reason"]
        ends_early = finish is not None and (self.at_token < len(self.tokens) or self.at_text < len(self.text))
        ended_before = self.finish is not None and (new or new_text or finish not in (None, self.finish))
        if ends_early or ended_before:
            raise lost()
        told_before, self.finish = self.finish, finish or self.finish
        self.tokens += new
        self.text += new_text
        logprobs = data["logprobs"]
        return Grown(
            index=self.index,
            text=new_text,
            tokens=tuple(new),
            logprobs=None if logprobs is None else logprobs[len(known) :],
            finish=None if told_before else finish,
        )


def lost() -> ServeError:
    return ServeError(
        "The worker that wrote this answer was lost, and the next one goes on with other words: what came so far is "
        "not the beginning of a whole answer. Ask again.",
        status=500,
        code="answer_lost",
    )


News = Grown | ChatReceipt


async def told(broker: Broker, job: Job, first_index: int = 0) -> AsyncIterator[list[News]]:
    """A job's continuations as they grow, and its receipt in the end; their indices count from `first_index`.

    Raises ServeError with the job's own words when it fails.
    """
    choices: dict[int, Told] = {}
    speaking = 0
    async for batch in broker.follow(job.id):
        news: list[News] = []
        for fence, event in batch:
            if event.kind == "failed":
                raise failure(event.data["code"], event.data["message"])
            if event.kind == "done":
                news.append(event.data["receipt"])
            elif event.kind == "tokens":
                if fence != speaking:
                    speaking = fence
                    for choice in choices.values():
                        choice.begin_again()
                index = event.data["index"]
                choice = choices.setdefault(index, Told(first_index + index))
                news.append(choice.take(event.data))  # type: ignore[arg-type]
        yield news
        if batch[-1][1].kind == "done":
            return
    raise ServeError("The chat was deleted before it was done.", status=409, code="cancelled")


async def all_told(broker: Broker, jobs: Sequence[Job], n: int) -> AsyncIterator[list[News]]:
    """What is told of several jobs of `n` continuations each, as it comes."""
    if len(jobs) == 1:
        async for news in told(broker, jobs[0]):
            yield news
        return
    queue: asyncio.Queue[list[News] | Exception | None] = asyncio.Queue()

    async def follow(number: int, job: Job) -> None:
        try:
            async for news in told(broker, job, number * n):
                queue.put_nowait(news)
            queue.put_nowait(None)
        except Exception as error:
            queue.put_nowait(error)

    following = [asyncio.create_task(follow(number, job)) for number, job in enumerate(jobs)]
    try:
        left = len(jobs)
        while left:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def failure(code: str, message: str) -> ServeError:
    return ServeError(message, status=STATUS.get(code, 500), code=code)
